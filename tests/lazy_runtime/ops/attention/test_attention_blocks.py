"""Attention over blocks of queries: what torch's CPU gives, in memory that does not grow with the square."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import lazy_runtime
from lazy_runtime.common import metrics
from lazy_runtime.debug import compiling
from lazy_runtime.ops import kernels, registry
from lazy_runtime.ops.attention import attention_aten, attention_blocks
from lazy_runtime.ops.attention.attention_kernels import ATTENTION, GRADIENT
from tests.lazy_runtime.ops.comparison import check, close, rand

OURS = "xla::lazy_runtime::attention"


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Blocks of four rows, however few there are, and no kernel of torch's."""
    with monkeypatch.context() as patched:
        patched.setattr(attention_aten, "accepts", lambda problem: kernels.Refused("this is a test"))
        patched.setattr(ATTENTION, "rows", (attention_blocks.KERNEL,))
        patched.setattr(GRADIENT, "rows", (attention_blocks.GRADIENT,))
        patched.setattr(attention_blocks, "WHOLE_BYTES", 0)
        patched.setattr(attention_blocks, "WHOLE_SCORES", 0)
        patched.setattr(attention_blocks, "BLOCK_BYTES", 1)
        patched.setattr(attention_blocks, "FEWEST_ROWS", 4)
        _forget()
        yield
    _forget()


def _forget():
    """Calls that were recorded under other sizes of blocks."""
    for operator in registry.table.values():
        if "attention" in operator.name:
            operator.calls.clear()
    torch._dynamo.reset()


@pytest.fixture(params=["xla", "compiled on xla", "compiled on the CPU"])
def compare(request):
    """`check` for each of the ways that attention comes to XLA."""
    if request.param == "xla":
        return check

    def compiled(function, *args, **kwargs):
        fast = torch.compile(function, backend="openxla")
        return check(function, *args, on=fast, device="xla" if "xla" in request.param else "cpu", **kwargs)

    return compiled


def attention(query, key, value, mask=None, **options):
    return F.scaled_dot_product_attention(query, key, value, mask, **options)


def causal(query, key, value):
    return attention(query, key, value, is_causal=True)


def grouped(query, key, value):
    return attention(query, key, value, enable_gqa=True)


def qkv(queries=18, keys=13, dtype=torch.float32):
    return [rand(2, 4, *sizes, dtype=dtype) for sizes in ((queries, 8), (keys, 8), (keys, 6))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("function", [attention, causal])
def test_each_dtype(compare, function, dtype):
    compare(function, *qkv(dtype=dtype))


@pytest.mark.parametrize(("queries", "keys"), [(16, 16), (7, 30), (30, 7), (1, 9)])
def test_lengths(queries, keys):
    for function in (attention, causal):
        check(function, *qkv(queries, keys))
    assert metrics.counters[OURS] == 2


@pytest.mark.parametrize("sizes", [(18, 13), (2, 1, 18, 13), (1, 4, 1, 13), (2, 4, 18, 1), (1, 1)], ids=str)
@pytest.mark.parametrize("kind", ["bool", "float", "gradient"])
def test_masks(kind, sizes):
    mask = rand(*sizes, grad=kind == "gradient") if kind != "bool" else torch.rand(sizes) > 0.4
    check(attention, *qkv(), mask)
    assert metrics.counters[OURS] == 1


def test_a_mask_with_a_gradient_when_compiled(compare):
    compare(attention, *qkv(), rand(2, 1, 18, 13))


def test_a_wide_mask_of_narrow_queries():
    check(attention, *qkv(dtype=torch.bfloat16), rand(18, 13, grad=False))


@pytest.mark.parametrize("boolean", [True, False])
def test_rows_that_are_wholly_masked(compare, boolean):
    mask = torch.ones(18, 13, dtype=torch.bool)
    mask[5], mask[17] = False, False
    if not boolean:
        mask = torch.zeros(18, 13).masked_fill(~mask, -torch.inf)
    result = compare(attention, *qkv(), mask)
    assert not result[:, :, [5, 17]].detach().cpu().any()


def test_nan_stays_in_its_row():
    query, key, value = (x.detach() for x in qkv())
    query[0, 0, 3, 0] = torch.nan
    check(attention, query, key, value)


def test_grouped_queries(compare):
    compare(grouped, rand(2, 4, 18, 8), rand(2, 2, 13, 8), rand(2, 2, 13, 8))


@pytest.mark.parametrize("lead", [(), (3,), (2, 1, 3)], ids=str)
def test_other_ranks(compare, lead):
    compare(attention, rand(*lead, 18, 8), rand(*lead, 13, 8), rand(*lead, 13, 8))


def test_scale(compare):
    compare(lambda q, k, v: attention(q, k, v, scale=0.7), *qkv())


def test_autocast(compare):
    def narrow(query, key, value):
        with torch.autocast(query.device.type, dtype=torch.bfloat16):
            return attention(query, key, value, dropout_p=1.0)

    compare(narrow, *qkv())


def test_inference_mode():
    query, key, value = (x.detach() for x in qkv())
    expected = attention(query, key, value)
    with torch.inference_mode():
        result = attention(query.to("xla"), key.to("xla"), value.to("xla"))
        close(result, expected)
    assert metrics.counters[OURS] == 1


def test_unknown_sizes():
    fast = torch.compile(attention, backend="openxla", dynamic=True)
    for queries in (18, 21):
        check(attention, *qkv(queries), on=fast)


@pytest.mark.parametrize("compiled", [None, "xla", "cpu"])
def test_dropout(compiled):
    """The gradients are those of the weights that were kept: values and gradients of one-hot rows show which."""
    torch.manual_seed(3)
    device = compiled or "xla"
    query, key = (torch.randn(2, 2, 18, 8).to(device) for _ in range(2))
    value = torch.eye(18).expand(2, 2, 18, 18).to(device).requires_grad_()

    def dropped(query, key, value):
        return attention(query, key, value, dropout_p=0.3)

    call = torch.compile(dropped, backend="openxla") if compiled else dropped
    result = call(query, key, value)  # the weights themselves
    probe = torch.randn(2, 2, 18, 18)
    result.backward(probe.to(device))
    weights = result.detach().cpu()
    close(value.grad, weights.mT @ probe)
    whole = attention(query.cpu(), key.cpu(), value.detach().cpu())
    kept = weights != 0
    close(weights, torch.where(kept, whole / 0.7, 0))
    assert 0.6 < kept.double().mean() < 0.8
    assert not torch.equal(kept[0, 0, 0], kept[0, 0, 1])
    assert not torch.equal(kept[0, 0], kept[1, 1])


def test_gradients_of_scores_under_dropout():
    """Against the derivative by finite differences, with the same bits."""
    with jax.enable_x64(True):
        query, key, value = (jnp.asarray(x.detach().numpy()) for x in qkv(dtype=torch.float64))
        options = attention_blocks.Options(0.4, False, 0.3, jnp.int64(7))

        def total(query, key):
            return attention_blocks.forward(query, key, value, None, options)[0].sum()

        attended, logsumexp = attention_blocks.forward(query, key, value, None, options)
        ones = jnp.ones_like(attended)
        grads = attention_blocks.backward(ones, query, key, value, None, attended, logsumexp, options)
        step = jnp.zeros_like(query).at[1, 2, 17, 3].set(1e-5)
        slope = (total(query + step, key) - total(query - step, key)) / 2e-5
        assert abs(slope - grads[0][1, 2, 17, 3]) < 1e-7
        step = jnp.zeros_like(key).at[1, 2, 9, 3].set(1e-5)
        slope = (total(query, key + step) - total(query, key - step)) / 2e-5
        assert abs(slope - grads[1][1, 2, 9, 3]) < 1e-7


def test_dropout_draws_each_time_anew():
    query, key, value = (x.detach().to("xla") for x in qkv())
    first, second = (attention(query, key, value, dropout_p=0.5) for _ in range(2))
    assert not torch.equal(first, second)


def test_second_derivatives_are_refused_by_name():
    query, key, value = (x.detach().to("xla").requires_grad_() for x in qkv())
    with pytest.raises(NotImplementedError, match="sdpa_kernel"):
        torch.autograd.grad(attention(query, key, value).sum(), query, create_graph=True)
    with sdpa_kernel(SDPBackend.MATH):
        (first,) = torch.autograd.grad(attention(query, key, value).sum(), query, create_graph=True)
    first.sum().backward()
    assert query.grad is not None


def test_what_is_composed(monkeypatch):
    """Few scores, and what only the composition knows."""
    monkeypatch.setattr(attention_blocks, "WHOLE_SCORES", 18 * 13)
    query, key, value = qkv()
    check(attention, query, key, value)
    monkeypatch.setattr(attention_blocks, "WHOLE_SCORES", 0)
    query, key, value = (x.detach().to("xla") for x in (query, key, value))
    gradient = torch.func.grad(lambda query: attention(query, key, value).sum())(query)
    assert gradient.shape == query.shape
    assert OURS not in metrics.counters


def test_wrong_sizes_are_refused_in_the_words_of_torch():
    query, key, value = (x.detach() for x in qkv())
    for wrong in ((query, key[..., :5], value), (query, key.double(), value)):
        with pytest.raises(RuntimeError) as expected:
            attention(*wrong)
        with pytest.raises(RuntimeError) as raised:
            attention(*(x.to("xla") for x in wrong))
        assert str(raised.value)[:40] == str(expected.value)[:40]


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("is_causal", [False, True])
def test_memory_of_long_sequences(monkeypatch, is_causal, dropout):
    """By XLA's own figures, for four times eight heads: the scores alone would be 8 GiB."""
    monkeypatch.undo()
    with jax.enable_x64(True):
        x = jax.ShapeDtypeStruct((4, 8, 8192, 64), jnp.float32)
        sums = jax.ShapeDtypeStruct(x.shape[:-1], jnp.float32)
        seed = jax.ShapeDtypeStruct((), jnp.int64)

        def forward(query, key, value, seed):
            options = attention_blocks.Options(0.125, is_causal, dropout, seed)
            return attention_blocks.forward(query, key, value, None, options)

        def backward(grad, query, key, value, attended, sums, seed):
            options = attention_blocks.Options(0.125, is_causal, dropout, seed)
            return attention_blocks.backward(grad, query, key, value, None, attended, sums, options)[:3]

        for function, arguments in ((forward, (x, x, x, seed)), (backward, (x, x, x, x, x, sums, seed))):
            found = jax.jit(function).lower(*arguments).compile().memory_analysis()
            assert found is not None
            total = found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes
            assert total < 2 << 30


def test_a_long_sequence_runs_within_little_memory(monkeypatch):
    monkeypatch.undo()
    query = torch.randn(1, 2, 4096, 8).to("xla").requires_grad_()
    compiling.clear()
    causal(query, query, query).sum().backward()
    lazy_runtime.sync(wait=True)
    peaks = [found.cost.peak for found in lazy_runtime.debug.compilations() if found.cost is not None]
    assert peaks
    assert max(peaks) < 64 << 20
    assert metrics.counters[OURS] == 1
