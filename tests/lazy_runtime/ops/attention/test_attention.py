"""Scaled dot-product attention in all its forms, in torch's kernel for the CPU and composed of other operators."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F

from lazy_runtime.lowering.layout import Strided
from lazy_runtime.ops import kernels
from lazy_runtime.ops.attention import attention_aten, attention_native
from lazy_runtime.ops.linalg import bfloat16_upcast
from tests.lazy_runtime.ops.comparison import check, rand

FLOATS = [torch.float32, torch.float64, torch.bfloat16]


@pytest.fixture(params=["xla", "composed on xla", "compiled on xla", "compiled on the CPU"], autouse=True)
def compare(request, monkeypatch):
    """`check` for each of the ways that attention comes to XLA."""
    if "composed" in request.param:
        monkeypatch.setattr(attention_aten, "accepts", lambda problem: kernels.Refused("this is a test"))
    if "compiled" not in request.param:
        yield check
        return
    torch._dynamo.reset()

    def compiled(function, *args, **kwargs):
        fast = torch.compile(function, backend="openxla")
        return check(function, *args, on=fast, device="xla" if "xla" in request.param else "cpu", **kwargs)

    yield compiled
    torch._dynamo.reset()


def attention(query, key, value, mask=None, **options):
    return F.scaled_dot_product_attention(query, key, value, mask, **options)


def qkv(queries=4, keys=6, features=8, values=8, dtype=torch.float32):
    return [rand(2, 3, *sizes, dtype=dtype) for sizes in ((queries, features), (keys, features), (keys, values))]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("causal", [False, True])
def test_our_kernel(compare, causal, dtype, request):
    kernels.clear()
    compare(attention, *qkv(9, 9, features=16, values=16, dtype=dtype), is_causal=causal)
    mask = torch.rand(2, 1, 9, 9) > 0.4
    mask[..., 0] = True
    compare(attention, *qkv(9, 9, features=16, values=16, dtype=dtype), mask)
    if "composed" not in request.node.callspec.params["compare"]:
        taken = {choice.kernel for choice in kernels.choices() if choice.kind == "attention"}
        assert (attention_native.KERNEL.name in taken) == (
            dtype != torch.float64 and attention_native._works(str(dtype).removeprefix("torch."))
        )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("causal", [False, True])
def test_each_dtype(compare, causal, dtype):
    compare(attention, *qkv(dtype=dtype), is_causal=causal)


@pytest.mark.parametrize(("queries", "keys"), [(6, 4), (4, 6), (5, 5), (1, 5)])
def test_causal_with_other_lengths(compare, queries, keys):
    compare(attention, *qkv(queries, keys), is_causal=True)


@pytest.mark.parametrize("sizes", [(4, 6), (2, 1, 4, 6), (2, 3, 4, 6), (1, 1, 1, 6)], ids=str)
def test_boolean_mask(compare, sizes):
    mask = torch.rand(sizes) > 0.4
    mask[..., 0] = True
    compare(attention, *qkv(), mask)


@pytest.mark.parametrize("dtype", FLOATS)
def test_float_mask(compare, dtype):
    compare(attention, *qkv(dtype=dtype), rand(2, 1, 4, 6, dtype=dtype, grad=False))


def test_a_mask_with_a_gradient(compare):
    compare(attention, *qkv(), rand(2, 3, 4, 6))


@pytest.mark.parametrize("boolean", [True, False])
def test_rows_that_are_wholly_masked(compare, boolean):
    """They attend to nothing: zeros, and no nan in any gradient."""
    mask = torch.ones(4, 6, dtype=torch.bool)
    mask[1], mask[2, 3:] = False, False
    if not boolean:
        mask = torch.zeros(4, 6).masked_fill(~mask, -torch.inf)
    result = compare(attention, *qkv(), mask)
    assert not result[:, :, 1].detach().cpu().any()


@pytest.mark.parametrize("scale", [0.3, 2.0])
def test_scale(compare, scale):
    compare(attention, *qkv(), scale=scale)


def test_large_scores_do_not_overflow(compare):
    query, key, value = qkv(dtype=torch.float64)
    with torch.no_grad():
        query *= 1000  # exp(710) is infinite
    # the gradients are 1000 times as sensitive to the scores, which are known to 1e-12
    compare(attention, query, key, value, tolerance=1e-8)


def test_values_of_another_width(compare):
    compare(attention, *qkv(values=5))


def test_fewer_heads_for_keys_and_values(compare):
    query, key, value = rand(2, 4, 5, 8), rand(2, 2, 6, 8), rand(2, 2, 6, 8)
    compare(functools.partial(attention, enable_gqa=True), query, key, value)


def test_three_dimensions(compare):
    compare(attention, rand(3, 4, 8), rand(3, 6, 8), rand(3, 6, 8))


def test_transposed_heads(compare):
    """Strides as in a model, whose projection is split into heads."""

    def heads(query, key, value):
        return attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), is_causal=True)

    compare(heads, rand(2, 4, 3, 8), rand(2, 4, 3, 8), rand(2, 4, 3, 8))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("form", ["unbind", "select", "features first"])
def test_parts_of_one_projection(compare, form, dtype, monkeypatch, request):
    """Queries, keys and values as a vision transformer takes them out of one product; the kernel reads them there."""
    call, kinds = bfloat16_upcast.call, set()

    def noted(platform, name, arguments, results):
        if not name.endswith("backward"):
            kinds.update(map(type, arguments[:3]))
        return call(platform, name, arguments, results)

    monkeypatch.setattr(bfloat16_upcast, "call", noted)

    def parts(projected):
        if form == "features first":  # those of a head do not lie side by side
            split = projected.view(2, 5, 8, 3, 3).permute(4, 0, 3, 1, 2)
        else:
            split = projected.view(2, 5, 3, 3, 8).permute(2, 0, 3, 1, 4)
        query, key, value = split.unbind(0) if form == "unbind" else (split[0], split[-2], split[2])
        return attention(query, key, value).transpose(1, 2).reshape(2, 5, 24)

    compare(parts, rand(2, 5, 72, dtype=dtype))
    if (
        "composed" not in request.node.callspec.params["compare"]
        and form != "features first"
        and not bfloat16_upcast.is_wanted("cpu", dtype)
    ):
        assert kinds == {Strided}
