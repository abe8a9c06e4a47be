"""Operators without a lowering are called: right values, gradients, errors, and no cut of the graph."""

from __future__ import annotations

import pytest
import torch

import lazy_runtime
from lazy_runtime.common import config, metrics
from lazy_runtime.execution import execute
from lazy_runtime.lowering import aten_bridge
from lazy_runtime.ops import registry
from lazy_runtime.recording import decompose, dispatch, fallback

aten = torch.ops.aten


@pytest.fixture
def without_lowering(monkeypatch):
    """Takes operators' lowerings and torch's decompositions of them away."""

    def take(*overloads: torch._ops.OpOverload) -> None:
        for overload in overloads:
            monkeypatch.delitem(registry.table, overload, raising=False)
            monkeypatch.delitem(decompose.decomposition_table, overload, raising=False)
            monkeypatch.setitem(dispatch._handlers, overload, fallback.call)

    return take


@pytest.fixture(params=["bridge", "callback"])
def road(request, monkeypatch):
    fallback._operator.cache_clear()
    if request.param == "callback":
        monkeypatch.setattr(aten_bridge, "is_built", lambda: False)
    yield request.param
    fallback._operator.cache_clear()


def both(function, *tensors):
    """The function's results on xla and on the CPU."""
    return function(*(x.to("xla") for x in tensors)), function(*tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32, torch.bfloat16, torch.bool])
def test_values_of_every_width(without_lowering, road, dtype):
    without_lowering(aten.flip.default)
    x = torch.arange(6).reshape(2, 3).to(dtype)
    if dtype is torch.int64:
        x = x + (1 << 40)
    ours, torchs = both(lambda x: x.flip(0, 1), x)
    assert ours.dtype == dtype
    assert torch.equal(ours.cpu(), torchs)


def test_complex_numbers_and_lists_of_tensors(without_lowering, road):
    without_lowering(aten.cat.default, aten.unbind_copy.int, aten.mul.Tensor)
    x = torch.randn(2, 3, dtype=torch.complex64)
    ours, torchs = both(lambda x: torch.cat([x, x.conj() * (1 + 2j)]), x)
    torch.testing.assert_close(ours.cpu(), torchs)
    ours, torchs = both(lambda x: torch.unbind_copy(x, 1), x)
    assert all(torch.equal(found.cpu(), expected) for found, expected in zip(ours, torchs, strict=True))


def test_optional_tensors_in_a_list(without_lowering, road):
    without_lowering(aten.index.Tensor)
    x, index = torch.randn(3, 4), torch.tensor([2, 0])
    ours, torchs = both(lambda x, index: x[:, index], x, index)
    assert torch.equal(ours.cpu(), torchs)


def test_the_graph_is_not_cut_and_the_call_is_counted(without_lowering):
    without_lowering(aten.erf.default)
    x = torch.randn(4, device="xla")
    lazy_runtime.sync()
    before = metrics.value("aten::erf"), metrics.value("ExecuteComputation")
    y = torch.erf(x * 2) + 1
    assert metrics.value("ExecuteComputation") == before[1]
    torch.testing.assert_close(y.cpu(), torch.erf(x.cpu() * 2) + 1)
    assert metrics.value("aten::erf") == before[0] + 1
    assert metrics.value("ExecuteComputation") == before[1] + 1


def test_gradients(without_lowering, road):
    without_lowering(aten.logcumsumexp.default, aten.linalg_eigh.default, aten._linalg_eigh.default)
    x = torch.randn(4, 4, requires_grad=True)
    y = x.detach().to("xla").requires_grad_()
    for z in (x, y):
        (torch.logcumsumexp(z, 0).sum() + torch.linalg.eigvalsh(z @ z.T).square().sum()).backward()
    torch.testing.assert_close(y.grad.cpu(), x.grad, rtol=1e-4, atol=1e-4)


def test_compiled(without_lowering):
    without_lowering(aten.histc.default)
    x = torch.randn(20)
    compiled = torch.compile(lambda x: torch.histc(x, 5) * 2, backend="openxla", fullgraph=True)
    assert torch.equal(compiled(x), torch.histc(x, 5) * 2)
    assert torch.equal(compiled(x.to("xla")).cpu(), torch.histc(x, 5) * 2)


def test_a_size_that_depends_on_data(without_lowering):
    x = torch.tensor([3, 1, 3, 2])
    for counts in (True, False):
        ours, torchs = both(lambda x, counts=counts: torch.unique(x, return_counts=counts), x)
        ours, torchs = (ours, torchs) if counts else ((ours,), (torchs,))
        assert all(torch.equal(found.cpu(), expected) for found, expected in zip(ours, torchs, strict=True))


def test_a_kernels_error_names_operator_and_line(without_lowering, road):
    without_lowering(aten._cdist_forward.default, aten.linalg_cholesky_ex.default, aten.linalg_solve_triangular.default)
    without_lowering(aten._linalg_check_errors.default, aten.linalg_ldl_factor_ex.default)
    without_lowering(aten.gather.default)
    x, index = torch.zeros(3, device="xla"), torch.full((3,), 7, device="xla")
    y = torch.gather(x, 0, index)  # here
    with pytest.raises(RuntimeError, match=r"index 7 is out of bounds for dimension 0 with size 3") as caught:
        y.cpu()
    assert "aten::gather, called at File" in str(caught.value)
    assert "test_fallback.py" in str(caught.value)
    assert (x + 1).tolist() == [1, 1, 1]


def test_the_strict_mode(without_lowering, monkeypatch):
    without_lowering(aten.histc.default)
    x = torch.ones(3, device="xla")
    monkeypatch.setenv("XLA_STRICT_FALLBACK", "1")
    with pytest.raises(NotImplementedError, match=r"aten::histc has no lowering to XLA, and XLA_STRICT_FALLBACK") as e:
        torch.histc(x, 3)
    assert "test_fallback.py" in str(e.value)
    config.set_strict_fallback(False)
    try:
        assert torch.histc(x, 3).sum().item() == 3
    finally:
        config.set_strict_fallback(None)


def test_an_operator_that_writes_cannot_be_called():
    with pytest.raises(
        NotImplementedError, match=r"aten::add_.Tensor has no lowering to XLA yet, and cannot be called"
    ):
        fallback.call(aten.add_.Tensor, (torch.ones(1), torch.ones(1)), {})


def test_eager_mode_raises_at_the_line(without_lowering, monkeypatch):
    without_lowering(aten.gather.default)
    monkeypatch.setattr(execute, "eager", True)
    x, index = torch.zeros(3, device="xla"), torch.full((3,), 7, device="xla")
    with pytest.raises(RuntimeError, match=r"index 7 is out of bounds"):
        torch.gather(x, 0, index)


def test_an_operator_without_any_kernel_says_what_to_do():
    library = torch.library.Library("lazy_runtime_tests", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")
    twice = torch.ops.lazy_runtime_tests.twice
    x = torch.ones(2, device="xla")
    with pytest.raises(NotImplementedError, match=r"lazy_runtime_tests::twice has no lowering .* torch.library.impl"):
        twice(x)
    library.impl("twice", lambda x: x * 2, "CPU")
    assert twice(x).tolist() == [2, 2]
