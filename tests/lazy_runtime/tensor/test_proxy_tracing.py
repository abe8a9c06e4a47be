"""`make_fx` and `torch.export` on xla: graphs as of CPU tensors, which give the right values for other inputs too."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._mode_utils import no_dispatch

from tests.recurrent import Recurrent

MODES = ("real", "fake", "symbolic")


class Network(nn.Module):
    """Parameters, buffers, a tied weight, factories, views and writes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.head, self.tied = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
        self.tied.weight = self.head.weight
        self.register_buffer("scale", torch.linspace(1, 2, 4))
        self.register_buffer("shift", torch.arange(4.0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.conv(x)).relu_().mean((2, 3))
        y = self.tied(self.head(y)) * self.scale + torch.ones(4, device=x.device) + self.shift
        y = y.view(-1, 2, 2).clone()
        y[:, 0].add_(1)
        y[0] = 2.0
        return nn.functional.layer_norm(y.mT, (2,))


def _operators(graph: torch.fx.GraphModule) -> list[str]:
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]


def _name(operator: str) -> str:
    return operator.removeprefix("aten.").partition(".")[0]


def _writes(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y.t()[1:3].mul_(2)
    y[0] = 1
    y.transpose_(0, 1)
    return y.add_(1)


def _out(x: torch.Tensor) -> torch.Tensor:
    return torch.mul(x, 2, out=torch.empty(0, device=x.device))


def _resized(x: torch.Tensor) -> torch.Tensor:
    return x.clone().resize_(2, 2)


def _indexed(x: torch.Tensor) -> torch.Tensor:
    row = torch.tensor([1], device=x.device)
    return x.masked_fill(x > 0, 2).index_put_((row,), x[:1]).scatter_(0, row[None], 3.0)


def _gradient(x: torch.Tensor) -> torch.Tensor:
    y = x.detach().requires_grad_()
    return torch.autograd.grad((y.sin() @ y.mT).square().sum(), y)[0]


FUNCTIONS: list[Callable[[torch.Tensor], torch.Tensor]] = [_writes, _out, _indexed, _gradient]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_function(function: Callable[[torch.Tensor], torch.Tensor], mode: Any):
    x, other = torch.randn(2, 4, 4)
    traced = make_fx(function, tracing_mode=mode)(x.to("xla"))
    assert _operators(traced)
    torch.testing.assert_close(traced(other.to("xla")).cpu(), function(other))


@pytest.mark.parametrize("function", [_resized, _gradient, torch.special.expit, lambda x: x.clone().t_().add_(1)])
def test_operators_are_those_that_were_called(function: Any):
    x = torch.randn(4, 4)
    wanted, found = ([*map(_name, _operators(make_fx(function)(each)))] for each in (x, x.to("xla")))
    assert [name for name in found if name != "detach"] == [name for name in wanted if name != "detach"]


@pytest.mark.parametrize("make", [Network, Recurrent])
def test_parameters_of_the_closure(make: type[nn.Module]):
    model = make().eval()
    shape = (2, 3, 8, 8) if make is Network else (5, 2, 8)
    x, other = torch.randn(2, *shape)
    on_xla = copy.deepcopy(model).to("xla")
    traced = make_fx(on_xla)(x.to("xla"))
    named = dict(traced.named_parameters())
    assert len(named) == len(list(model.parameters()))
    assert {id(each) for each in named.values()} == {id(each) for each in on_xla.parameters()}
    torch.testing.assert_close(traced(other.to("xla")).cpu(), model(other), rtol=1e-4, atol=1e-5)


def test_parameters_in_training():
    model = Network()
    on_xla = copy.deepcopy(model).to("xla")
    x = torch.randn(4, 3, 8, 8)
    traced = make_fx(copy.deepcopy(on_xla))(x.to("xla"))
    traced(x.to("xla")).square().sum().backward()
    model(x)  # the trace itself has been a step
    model(x).square().sum().backward()
    for (name, one), two in zip(model.named_parameters(), traced.parameters(), strict=True):
        torch.testing.assert_close(two.grad.cpu(), one.grad, rtol=1e-3, atol=1e-3, msg=name)
    counts = [each for each in traced.buffers() if each.dtype is torch.int64]
    assert [int(each) for each in counts] == [2]


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_real_parameters_among_fake_tensors(mode: Any):
    model = Network().eval().to("xla")
    x = torch.randn(2, 3, 8, 8, device="xla")
    with pytest.raises(AssertionError, match="Please convert all Tensors to FakeTensors first"):
        make_fx(model, tracing_mode=mode)(x)
    traced = make_fx(model, tracing_mode=mode, _allow_non_fake_inputs=True)(x)
    torch.testing.assert_close(traced(x), model(x))


def test_fake_tensors_beside_xla_tensors():
    x = torch.ones(3, device="xla")
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.ones(3, device="xla"))
        with pytest.raises(AssertionError, match="Please convert all Tensors to FakeTensors first"):
            torch.add(fake, x)
    with pytest.raises(AssertionError, match="Please convert all Tensors to FakeTensors first"):
        torch.add(x, fake)


def test_resize_of_a_fake_tensor():
    with FakeTensorMode():
        assert torch.empty(2, 8, device="xla").resize_(2, 4).shape == (2, 4)


def test_tables_of_decompositions():
    table = torch._decomp.get_decompositions([torch.ops.aten.addmm])
    model = nn.Linear(3, 2)
    x = torch.randn(4, 3)
    expected = model(x)
    traced = make_fx(model.to("xla"), table)(x.to("xla"))
    assert "aten.mm.default" in _operators(traced)
    torch.testing.assert_close(traced(x.to("xla")).cpu(), expected)


def test_values_that_are_read_are_refused():
    with pytest.raises(RuntimeError, match="trying to get value out of a tracing tensor"):
        make_fx(lambda x: x * x.sum().item())(torch.ones(3, device="xla"))


def test_functionalize_within():
    torch.ones(1, device="xla")
    x = torch.randn(3)
    traced = make_fx(torch.func.functionalize(lambda x: x.clone().add_(1)))(x)
    assert "aten.add.Tensor" in _operators(traced)
    torch.testing.assert_close(traced(x), x + 1)


def test_no_dispatch():
    x = torch.randn(3, 3)
    with no_dispatch():
        found = x.to("xla").clone()
    torch.testing.assert_close(found.cpu(), x)


@pytest.mark.filterwarnings("ignore:`isinstance:FutureWarning")  # torch's, in run_decompositions
@pytest.mark.parametrize("strict", [False, True])
def test_export(strict: bool):
    model = Network().eval()
    x = torch.randn(2, 3, 8, 8)
    batch = torch.export.Dim("batch", min=2, max=16)
    on_xla = copy.deepcopy(model).to("xla")
    program = torch.export.export(on_xla, (x.to("xla"),), dynamic_shapes=({0: batch},), strict=strict)
    memory = io.BytesIO()
    torch.export.save(program, memory)
    memory.seek(0)
    loaded = torch.export.load(memory)
    assert {each.device.type for each in loaded.state_dict.values()} == {"xla"}
    other = torch.randn(5, 3, 8, 8)
    expected = model(other)
    for each in (program, loaded, loaded.run_decompositions()):
        torch.testing.assert_close(each.module()(other.to("xla")).cpu(), expected, rtol=1e-4, atol=1e-5)
    for name in ("head", "tied"):
        weight = loaded.state_dict[f"{name}.weight"]
        torch.testing.assert_close(weight.cpu(), model.head.weight.detach(), check_stride=True)
    compiled = torch.compile(loaded.module(), backend="openxla")
    torch.testing.assert_close(compiled(other.to("xla")).cpu(), expected, rtol=1e-4, atol=1e-5)


def test_export_of_views_of_one_memory():
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            memory = torch.arange(12.0, device="xla")
            self.register_buffer("all", memory)
            self.register_buffer("part", memory[4:8])
            self.register_buffer("turned", memory.view(3, 4).t())

        def forward(self, x: torch.Tensor) -> Any:
            return x + self.part, self.turned @ x[:3], self.all.sum()

    model = Views()
    x = torch.arange(4.0, device="xla")
    memory = io.BytesIO()
    torch.export.save(torch.export.export(model, (x,)), memory)
    memory.seek(0)
    loaded = torch.export.load(memory).module()
    for found, wanted in zip(loaded(x), model(x), strict=True):
        torch.testing.assert_close(found.cpu(), wanted.cpu())
