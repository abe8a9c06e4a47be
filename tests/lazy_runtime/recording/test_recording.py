"""What is recorded in C++ is what `dispatch.record` records."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import lazy_runtime
from lazy_runtime import native
from lazy_runtime.common import metrics
from lazy_runtime.ir import graph as ir
from lazy_runtime.ir import lifetimes
from lazy_runtime.platform import xla_devices
from lazy_runtime.recording import dispatch, fallback
from lazy_runtime.tensor import xla_tensor as tensor

aten = torch.ops.aten

CALLS = {
    "tensors": lambda x, y: x + y,
    "a number in range": lambda x, y: x * 2,
    "a number": lambda x, y: x * 2.5,
    "an int": lambda x, y: x * 7,
    "a special float": lambda x, y: x * -1.0,
    "minus zero": lambda x, y: x + -0.0,
    "nan": lambda x, y: x + float("nan"),
    "bools": lambda x, y: x.logical_and(y) == True,  # noqa: E712
    "complex": lambda x, y: x * 1j,
    "a keyword": lambda x, y: torch.add(x, y, alpha=2.5),
    "a dtype": lambda x, y: x.sum(0, dtype=torch.float64),
    "a string": lambda x, y: F.gelu(x, approximate="tanh"),
    "sizes": lambda x, y: x.view(6, 2).expand(3, 6, 2),
    "no sizes": lambda x, y: x.sum(dim=()),
    "a list of tensors": lambda x, y: torch.cat([x, y, x]),
    "None among tensors": lambda x, y: F.batch_norm(x, None, None, None, y[0], True),
    "a product": lambda x, y: x @ y.t(),
    "a view": lambda x, y: x.t(),
    "several results": lambda x, y: x.max(0),
    "a list of results": lambda x, y: x.split(2),
    "an undefined result": lambda x, y: aten.native_layer_norm_backward(
        y, x, [4], x.mean(1, True), x.std(1, keepdim=True), y[0], y[0], [True, False, True]
    ),
    "a write": lambda x, y: x.clone().add_(y),
    "a factory like": lambda x, y: torch.zeros_like(x) + y,
    "an index": lambda x, y: x[1:, None],
    "a tensor of the CPU": lambda x, y: x + torch.tensor(3.0),
    "random": lambda x, y: F.dropout(x),
}


def recorded() -> list[Any]:
    """What is pending, with operands by where they come from."""
    nodes = xla_devices.get(torch.device("xla:0")).pending
    places = {id(node): place for place, node in enumerate(nodes)}
    return [
        (
            node.call,
            [
                (places[id(value.node)], value.index) if value.node is not None else bytes(value.array)
                for value in node.inputs
            ],
            [repr(number) for number in node.floats],
            len(node.ints) if node.call.random else list(node.ints),
            [owner is not None and owner() is not None for owner in node.outputs],
        )
        for node in nodes
    ]


@pytest.fixture
def left_to_python(monkeypatch) -> list[Any]:
    """The overloads that C++ has left to Python."""
    seen = []
    record = dispatch.record

    def watched(operator: Any, *rest: Any) -> Any:
        seen.append(operator.overload)
        return record(operator, *rest)

    monkeypatch.setattr(dispatch, "record", watched)
    return seen


def operands() -> tuple[torch.Tensor, torch.Tensor]:
    x, y = torch.randn(3, 4, device="xla"), torch.randn(3, 4, device="xla")
    lazy_runtime.sync()
    return x, y


def begin() -> torch.Tensor:
    """What a pending graph begins with is left to Python."""
    return torch.ones(2, device="xla") + 1


def test_it_is_built():
    assert type(tensor.XLATensor.__torch_dispatch__) is type(len)
    assert native.recording()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_same_is_recorded(call, in_python):
    x, y = operands()
    call(x, y)
    lazy_runtime.sync()

    def once() -> tuple[Any, ...]:
        begun = begin()
        metrics.clear_counters()
        results = call(x, y)
        looks = [
            (r.shape, r.stride(), r.storage_offset(), r.dtype, r.device, r.is_leaf)
            for r in (results if isinstance(results, list | tuple) else [results])
            if r is not None
        ]
        nodes, (counted, _) = recorded(), metrics.snapshot()
        del results, begun
        lazy_runtime.sync()
        return nodes, looks, counted

    quick = once()
    in_python()
    assert quick == once()


@pytest.mark.parametrize(
    "call", [call for name, call in CALLS.items() if name not in ("a tensor of the CPU", "random", "a factory like")]
)
def test_what_is_known_is_not_left_to_python(call, left_to_python):
    x, y = operands()
    call(x, y)
    begun = begin()
    left_to_python.clear()
    result = call(x, y)
    assert left_to_python == []
    del result, begun


def test_tensors_are_what_torch_makes_of_their_specs():
    x, y = operands()
    for call in (torch.add, torch.eq, lambda x, y: x.t()[1:], lambda x, y: x[:0], lambda x, y: x.sum()):
        call(x, y)
        begun = begin()
        ours = tensor.unwrap(call(x, y))
        torchs = tensor.make(ours.handle, ours.spec)
        for look in (
            torch._C._dispatch_keys,
            torch.is_inference,
            lambda t: (t.shape, t.stride(), t.storage_offset(), t.dtype, t.device, t.layout, t._version),
            lambda t: (t.untyped_storage().nbytes(), t.untyped_storage().device, t.untyped_storage().resizable()),
        ):
            assert str(look(ours)) == str(look(torchs))
        del begun


def test_errors_are_torchs():
    x, y = operands()
    for _ in range(2):
        begun = begin()
        with pytest.raises(RuntimeError, match=r"The size of tensor a \(4\) must match the size of tensor b \(3\)"):
            x + y.t()
        del begun


def test_a_handler_that_comes_later_is_called(monkeypatch):
    x, _ = operands()
    x.erfinv()
    begun = begin()
    x.erfinv()
    monkeypatch.setitem(dispatch._handlers, aten.erfinv.default, fallback.call)
    metrics.clear_counters()
    x.erfinv()
    assert "aten::erfinv" in metrics.counters
    del begun


def test_another_precision_and_another_default_dtype_are_other_calls():
    x, y = operands()
    z = torch.arange(4, device="xla")
    begun = begin()
    try:
        for _ in range(2):
            torch.set_float32_matmul_precision("highest")
            kept = [x @ y.t(), z / 3]
            torch.set_float32_matmul_precision("high")
            torch.set_default_dtype(torch.float64)
            kept += [x @ y.t(), z / 3]
            torch.set_default_dtype(torch.float32)
            assert [k.dtype for k in kept[1::2]] == [torch.float32, torch.float64]
            products = [node[0] for node in recorded() if node[0].name == "aten::mm"]
            assert products[-2] is not products[-1]
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision("highest")
    del begun


def test_views_in_inference_mode():
    x, y = operands()
    for _ in range(2):
        with torch.inference_mode():
            begun = begin()
            view, total = x.t(), x + y
            assert not view.is_inference()
            assert total.is_inference()
            del begun
    assert torch.equal(total.cpu(), x.cpu() + y.cpu())


def test_nothing_is_left_behind():
    """Reference counts: what a step records goes with it."""
    x, y = operands()

    def step() -> None:
        begun = begin()
        for call in CALLS.values():
            call(x, y)
        del begun
        lazy_runtime.sync()
        gc.collect()

    def objects() -> int:
        return sum(type(each) in (list, ir.Node, ir.Value, ir.Handle, tensor.XLATensor) for each in gc.get_objects())

    for _ in range(3):
        step()
    before, alive = objects(), lifetimes.alive()
    for _ in range(5):
        step()
    assert (objects(), lifetimes.alive()) == (before, alive)
