"""Operators without a lowering of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch._decomp import decomposition_table
from torch.fx.experimental.proxy_tensor import make_fx

from lazy_runtime.common import metrics
from lazy_runtime.ops import registry
from lazy_runtime.recording import dispatch

prims = torch.ops.prims

PRIMS = {
    "convert_element_type": lambda x: prims.convert_element_type(x, torch.float64),
    "add": lambda x: prims.add(x, x),
    "sum": lambda x: prims.sum(x, [1]),
    "amax": lambda x: prims.amax(x, [0]),
    "where": lambda x: prims.where(prims.gt(x, prims.mul(x, x)), x, prims.neg(x)),
    "cat": lambda x: prims.cat([x, x], 1),
    "reshape": lambda x: prims.reshape(x, [12]),
    "broadcast_in_dim": lambda x: prims.broadcast_in_dim(x, [2, 3, 4], [1, 2]),  # these give views
    "transpose": lambda x: prims.transpose(x, [1, 0]),
    "copy_to": lambda x: prims.copy_to(x + 0, x * 2),  # this one writes
}


@pytest.mark.parametrize("function", PRIMS.values(), ids=PRIMS)
def test_prims(function):
    host = torch.rand(3, 4) * 2
    x = host.to("xla")
    expected = function(host)
    torch._dynamo.reset()
    for run in (function, make_fx(function)(x), torch.compile(function, backend="openxla")):
        torch.testing.assert_close(run(x).cpu(), expected)


def test_a_prim_that_writes_reaches_the_user_s_tensor():
    x, row = torch.zeros(2, 3, device="xla"), torch.ones(3, device="xla")
    prims.copy_to(x[1], row)
    assert x.tolist() == [[0, 0, 0], [1, 1, 1]]


def without_lowering(monkeypatch, *names: str) -> None:
    for name in names:
        overload = registry.overload(name)
        monkeypatch.delitem(registry.table, overload, raising=False)
        monkeypatch.delitem(dispatch._handlers, overload, raising=False)


@pytest.fixture
def resolved_again() -> Iterator[None]:
    """What a test made `dispatch` find is forgotten with the test."""
    handlers = dict(dispatch._handlers)
    yield
    dispatch._handlers.clear()
    dispatch._handlers.update(handlers)


@pytest.mark.usefixtures("resolved_again")
@pytest.mark.parametrize(
    ("name", "function"), [("aten::complex", torch.complex), ("aten::polar", torch.polar)], ids=["complex", "polar"]
)
def test_a_decomposition_that_writes_in_place(monkeypatch, name, function):
    without_lowering(monkeypatch, name)
    assert registry.overload(name) in decomposition_table
    x, y = torch.rand(2, 3), torch.rand(3)
    torch.testing.assert_close(function(x.to("xla"), y.to("xla")).cpu(), function(x, y))


@pytest.mark.usefixtures("resolved_again")
def test_a_decomposition_that_comes_back_to_itself(monkeypatch):
    without_lowering(monkeypatch, "aten::erfinv")
    monkeypatch.setitem(decomposition_table, torch.ops.aten.erfinv.default, lambda x: torch.erfinv(x) + 0)
    x = torch.zeros(2, device="xla")
    before = metrics.value("aten::erfinv")
    for count in (1, 2):  # torch's kernel is called
        assert torch.erfinv(x).tolist() == [0, 0]
        assert metrics.value("aten::erfinv") == before + count


@pytest.mark.usefixtures("resolved_again")
def test_mixed_devices(monkeypatch):
    without_lowering(monkeypatch, "aten::logaddexp")
    x, y = torch.rand(3), torch.rand(3)
    torch.testing.assert_close(torch.logaddexp(x.to("xla"), y.to("xla")).cpu(), torch.logaddexp(x, y))
    with pytest.raises(RuntimeError, match=r"found at least two devices, xla:0 and cpu!"):
        torch.logaddexp(x.to("xla"), y)


def test_a_kernel_of_the_users_for_xla():
    library = torch.library.Library("lazy_runtime_test_decompose", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x.clone().mul_(2), "XLA")
    x = torch.arange(3.0, device="xla")
    assert torch.ops.lazy_runtime_test_decompose.twice(x).tolist() == [0.0, 2.0, 4.0]
    assert x.tolist() == [0.0, 1.0, 2.0]
