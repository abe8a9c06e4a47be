"""How operators are registered, and what `pointwise` does about dtypes."""

from __future__ import annotations

import jax.numpy as jnp
import pytest
import torch

from lazy_runtime.ops import registry
from lazy_runtime.ops.registry import Promotion, lookup, op, overload, pointwise
from lazy_runtime.recording import dispatch
from lazy_runtime.tensor.xla_tensor import unwrap
from tests.lazy_runtime.ops.comparison import check, rand

aten = torch.ops.aten


@pytest.fixture
def table(monkeypatch):
    """An empty table to register in."""
    monkeypatch.setattr(registry, "table", {})
    return registry.table


def test_overloads_by_name():
    assert overload("aten::add.Tensor") is aten.add.Tensor
    assert overload("aten::mm") is aten.mm.default
    assert overload("aten::mm.no_such_overload") is None
    assert overload("aten::no_such_operator") is None
    assert overload("no_such_namespace::mm") is None


@pytest.mark.parametrize("register", [op, pointwise])
def test_a_second_lowering_raises(table, register):
    register("aten::relu")(jnp.abs)
    with pytest.raises(ValueError, match="aten::relu has two lowerings"):
        register("aten::relu")(jnp.sign)


@pytest.mark.parametrize("register", [op, pointwise])
def test_names_of_other_torch_versions_are_skipped(table, register):
    register("aten::no_such_operator", "aten::relu", "aten::add.no_such_overload")(jnp.abs)
    assert list(table) == [aten.relu.default]


def test_a_view_serves_its_copy_form(table):
    @op("aten::transpose.int", "aten::t", "aten::select.int", view=True)
    def nothing(x, *args):
        return x

    for view, copy in (("transpose", "transpose_copy"), ("select", "select_copy")):
        operator = table[getattr(aten, copy).int]
        assert operator.overload is getattr(aten, copy).int
        assert operator.infer is getattr(aten, view).int  # whose strides are those of the alias
        assert operator.lowering is table[getattr(aten, view).int].lowering
    assert aten.t_copy.default in table
    op("aten::relu")(jnp.abs)
    assert len(table) == 7


def test_the_views_of_the_table_have_their_copy_forms():
    for name in ("view", "slice.Tensor", "as_strided", "permute", "expand", "split.Tensor", "unbind.int"):
        packet, _, rest = name.partition(".")
        view, copy = overload(f"aten::{name}"), overload(f"aten::{packet}_copy" + (f".{rest}" if rest else ""))
        assert view.is_view
        assert lookup(copy).infer is view


def test_what_a_lowering_may_ask_for(table):
    seen = {}

    @op("aten::expand")
    def expand(x, size, *, out, input_spec):
        seen.update(out=out.shape, input=input_spec.shape)
        return jnp.broadcast_to(x, out.shape)

    x = unwrap(torch.ones(1, 3, device="xla"))
    result = dispatch.record(table[aten.expand.default], (x, [2, -1]), {})
    assert torch.equal(torch._to_functional_tensor(result).cpu(), torch.ones(2, 3))
    assert seen == {"out": (2, 3), "input": (1, 3)}


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (torch.int32, torch.int64),
        (torch.uint8, torch.int8),
        (torch.int64, torch.float32),
        (torch.bool, torch.int16),
        (torch.float32, torch.float64),
        (torch.bfloat16, torch.float16),
        (torch.bfloat16, torch.float32),
        (torch.int64, torch.bfloat16),
        (torch.float32, torch.complex64),
    ],
)
def test_promotion_of_two_tensors(x, y):
    values = [torch.tensor([1, 0, 1, 1]).to(x), torch.tensor([1, 1, 0, 1]).to(y)]
    for function in (torch.add, torch.mul, torch.true_divide, torch.eq):
        check(function, *values)
        check(function, *reversed(values))
        check(function, values[0][0], values[1])  # a 0-d tensor gives way to one with dimensions


@pytest.mark.parametrize("number", [2, 2.5, True, 1 + 2j])
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float64])
def test_promotion_with_numbers(dtype, number):
    x = torch.tensor([1, 0, 1]).to(dtype)
    for function in (torch.add, torch.mul, torch.eq):
        check(function, x, number)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("function", [torch.sin, torch.sqrt, torch.sigmoid, torch.isnan, torch.logical_not])
def test_results_that_are_floats_or_bools_whatever_came_in(function, dtype):
    check(function, torch.tensor([0, 1, 2, 3]).to(dtype))


def test_16_bit_floats_are_computed_in_float32():
    """Rounded once, at the end: bfloat16 in every step would be off in most places."""
    x = rand(1000, dtype=torch.bfloat16, grad=False).abs() + 0.1
    for function in (torch.nn.functional.gelu, torch.nn.functional.softplus, torch.tanh, torch.log1p):
        here, there = function(x), function(x.to("xla")).cpu()
        assert there.dtype == torch.bfloat16
        exact = function(x.double())
        # half a unit in the last of bfloat16's 8 bits, and a little for float32's own rounding
        torch.testing.assert_close(there.double(), exact, rtol=2**-8 * 1.01, atol=1e-6)
        torch.testing.assert_close(there, here, rtol=2**-7, atol=1e-6)  # a unit: at a tie each may go its way


def test_the_computation_dtype_that_a_lowering_sees(monkeypatch):
    for target in (aten.sub.Tensor, aten.div.Tensor):
        monkeypatch.delitem(registry.table, target)
    seen = []

    @pointwise("aten::sub.Tensor")
    def sub(x, y, *, alpha=1):
        seen.append((str(x.dtype), str(y.dtype)))
        return x - y * alpha

    @pointwise("aten::div.Tensor", promotion=Promotion.INT_TO_FLOAT)
    def div(x, y):
        seen.append((str(x.dtype), str(y.dtype)))
        return x / y

    def run(name, x, y):
        args = unwrap(x.to("xla")), unwrap(y.to("xla"))
        return torch._to_functional_tensor(dispatch.record(registry.table[name], args, {})).cpu()

    half = torch.tensor([1.5, 2.5], dtype=torch.bfloat16)
    whole = torch.tensor([4, 5])
    assert run(aten.sub.Tensor, half, whole).dtype == torch.bfloat16
    assert torch.equal(run(aten.div.Tensor, whole, whole.int() * 2), torch.tensor([0.5, 0.5]))
    assert seen == [("float32", "float32"), ("float32", "float32")]


@pytest.mark.parametrize(
    "operands",
    [
        [(2, 3), (2, 3)],
        [(2, 1, 3), (2, 1, 3)],
        [(0, 3), (0, 3)],
        [(), ()],
        [(2, 3), (3,)],
        [(2, 3), ()],
    ],
    ids=str,
)
@pytest.mark.parametrize("is_permuted", [False, True])
def test_what_an_elementwise_operator_gives(operands, is_permuted):
    """Where its operands are alike it is told by one element, and elsewhere by torch's meta kernel."""
    tensors = [torch.ones(shape, dtype=dtype) for shape, dtype in zip(operands, (torch.int8, torch.half), strict=True)]
    if is_permuted:
        tensors = [x.mT.contiguous().mT if x.ndim > 1 else x for x in tensors]
    for function in (torch.add, torch.eq, torch.true_divide):
        expected = function(*tensors)
        found = function(*(x.to("xla") for x in tensors))
        assert (found.dtype, found.shape, found.stride()) == (expected.dtype, expected.shape, expected.stride())


def test_the_first_operators_do_not_import_dynamo(forked_process):
    """That takes half a second of a program's first result."""
    forked_process("""
        import sys, torch
        x = torch.ones(3, device="xla")
        assert (torch.relu(x + x) * 2).sum().item() == 12
        assert "torch._dynamo" not in sys.modules
    """)
