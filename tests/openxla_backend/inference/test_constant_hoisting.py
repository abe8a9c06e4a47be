"""Inference computes what depends on parameters alone once, and never gives a stale result."""

from __future__ import annotations

import copy
import weakref

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import lazy_runtime
import openxla_backend.backend
from lazy_runtime.common import metrics
from lazy_runtime.tensor.xla_tensor import unwrap


class Net(nn.Module):
    """Convolutions with and without bias, in groups, before batch norms with and without scale."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, groups=4),
            nn.BatchNorm2d(8, affine=False),
            nn.ConvTranspose2d(8, 4, 2),
            nn.BatchNorm2d(4),
        )
        self.last = nn.Linear(4, 5)
        for layer in self.layers:
            if isinstance(layer, nn.BatchNorm2d):
                assert layer.running_mean is not None
                assert layer.running_var is not None
                nn.init.normal_(layer.running_mean)
                nn.init.uniform_(layer.running_var, 0.5, 2.0)
                if layer.affine:
                    nn.init.normal_(layer.weight)
                    nn.init.normal_(layer.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.layers(x).mean((2, 3)))


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


class WithConstants(Net):
    """Tensors made of Python numbers in `forward`: attributes of the graph, as caches of language models have them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = torch.tensor([1.0, 2.0, 0.5, -1.0, 3.0], device=x.device)
        return super().forward(x + torch.tensor(0.5)) * scale


@torch.no_grad()
@pytest.mark.parametrize("device", ["xla", "cpu"])
def test_constants(device):
    torch.manual_seed(0)
    net, x = WithConstants().eval(), torch.randn(2, 3, 8, 8)
    options = {"freezing": True} if device == "cpu" else {}
    compiled = torch.compile(copy.deepcopy(net).to(device), backend="openxla", options=options)
    for _ in range(2):
        torch.testing.assert_close(compiled(x.to(device)).cpu(), net(x))


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_results(net, dtype):
    net, x = net.to(dtype), torch.randn(2, 3, 8, 8).to(dtype)
    found = torch.compile(copy.deepcopy(net).to("xla"), backend="openxla")(x.to("xla"))
    torch.testing.assert_close(found.cpu(), net(x))


@torch.no_grad()
def test_once(net):
    compiled = torch.compile(net.to("xla"), backend="openxla", dynamic=True)
    compiled(torch.randn(2, 3, 8, 8, device="xla"))
    for size in (2, 3):
        before = metrics.value("ExecuteComputation")
        compiled(torch.randn(size, 3, 8, 8).to("xla"))
        assert metrics.value("ExecuteComputation") == before + 1, f"batch of {size}"


def _in_place(net: nn.Module) -> None:
    for parameter in net.parameters():
        parameter.mul_(1.5)


def _load(net: nn.Module) -> None:
    net.load_state_dict({name: value * 1.5 for name, value in net.state_dict().items()})


def _through_data(net: nn.Module) -> None:
    for parameter in net.parameters():
        parameter.data.mul_(1.5)


def _new_data(net: nn.Module) -> None:
    for parameter in net.parameters():
        parameter.data = parameter.data * 1.5


def _through_a_view(net: nn.Module) -> None:
    for parameter in net.parameters():
        parameter.detach().view(-1)[:1] = 3.0


def _running_statistics(net: nn.Module) -> None:
    net.train()
    torch.manual_seed(1)
    net(torch.randn(4, 3, 8, 8).to(next(net.parameters()).device))
    net.eval()


def _optimizer(net: nn.Module, **options: bool) -> None:
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD(net.parameters(), lr=0.1, **options).step()


def _foreach_optimizer(net: nn.Module) -> None:
    _optimizer(net, foreach=True)


def _compiled(net: nn.Module) -> None:
    @torch.compile(backend="openxla")
    def update() -> None:
        for parameter in net.parameters():
            parameter.mul_(1.1)

    for _ in range(4):  # from then on it knows that they are alone with their memory
        update()


WRITES = [
    _in_place,
    _load,
    _through_data,
    _new_data,
    _through_a_view,
    _running_statistics,
    _optimizer,
    _foreach_optimizer,
    _compiled,
]


@torch.no_grad()
@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__.strip("_"))
def test_after_a_write(net, write):
    x = torch.randn(2, 3, 8, 8)
    on_xla = copy.deepcopy(net).to("xla")
    compiled = torch.compile(on_xla, backend="openxla")
    before = compiled(x.to("xla")).cpu()
    write(net)
    write(on_xla)
    found = compiled(x.to("xla")).cpu()
    assert not torch.equal(found, before)
    torch.testing.assert_close(found, net(x))


@torch.no_grad()
def test_old_values_are_not_kept_alive(net):
    net.to("xla")
    compiled = torch.compile(net, backend="openxla")
    x = torch.randn(2, 3, 8, 8, device="xla")
    compiled(x)
    handle = weakref.ref(unwrap(net.last.weight).handle)
    assert handle() is not None
    net.last.weight.mul_(2.0)
    assert handle() is None


@torch.no_grad()
def test_a_parameter_that_is_returned_or_written_to():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(3))
            self.scale = nn.Parameter(torch.full((3,), 2.0))
            self.shift = nn.Parameter(torch.ones(3))

        def forward(self, x):
            self.count.add_(1)
            return x * self.scale + self.shift + self.count, self.scale, self.shift[1:]

    module = Counter().to("xla")
    compiled = torch.compile(module, backend="openxla")
    for number in (1, 2, 3):
        result, scale, part = compiled(torch.ones(3, device="xla"))
        assert result.tolist() == [3.0 + number] * 3
        assert scale is module.scale
        assert part.data_ptr() == module.shift[1:].data_ptr()


class Noting:
    """The backend, which notes how many programs have been run when it has compiled a graph."""

    def __init__(self, afterwards=lambda: None):
        self.executions = []
        self.afterwards = afterwards

    def __call__(self, gm, examples):
        compiled = openxla_backend.backend.openxla(gm, examples)
        self.executions.append(metrics.value("ExecuteComputation"))
        self.afterwards()
        return compiled


@torch.no_grad()
@pytest.mark.parametrize("are_there", [True, False])
def test_the_first_call_begins_while_dynamo_is_at_work(net, are_there):
    on_xla, x = copy.deepcopy(net).to("xla"), torch.randn(2, 3, 8, 8)
    if not are_there:  # to run what they are the results of is for the call
        for each in (net, on_xla):
            _in_place(each)
    else:
        lazy_runtime.sync(wait=True)
    before = metrics.value("ExecuteComputation")
    noting = Noting()
    compiled = torch.compile(on_xla, backend=noting)
    found = compiled(x.to("xla")).cpu()
    assert noting.executions == [before + 2 * are_there]
    assert metrics.value("ExecuteComputation") == before + 2 + (not are_there)
    torch.testing.assert_close(found, net(x))
    torch.testing.assert_close(compiled(x.to("xla") + 1).cpu(), net(x + 1))


@torch.no_grad()
@pytest.mark.parametrize("part", ["the input", "a parameter"])
def test_what_has_begun_is_not_taken_for_other_values(net, part):
    on_xla, x = copy.deepcopy(net).to("xla"), torch.randn(2, 3, 8, 8)
    given = x.to("xla")
    lazy_runtime.sync(wait=True)
    written, like = (given, x) if part == "the input" else (on_xla.last.weight, net.last.weight)
    noting = Noting(lambda: written.mul_(2))
    found = torch.compile(on_xla, backend=noting)(given)
    assert noting.executions
    like.mul_(2)
    torch.testing.assert_close(found.cpu(), net(x))


@torch.no_grad()
def test_the_first_result_is_not_kept_alive(net):
    on_xla, x = copy.deepcopy(net).to("xla"), torch.randn(2, 3, 8, 8, device="xla")
    lazy_runtime.sync(wait=True)
    compiled = torch.compile(on_xla, backend="openxla")
    result = compiled(x)
    array = weakref.ref(unwrap(result).handle.value.array)
    del result
    lazy_runtime.sync(wait=True)  # the device looks at what has been started until it has ended
    assert array() is None


def test_what_is_compiled_for_training_does_not_keep_its_first_arguments(net):
    compiled = torch.compile(net.to("xla"), backend="openxla")
    x = torch.randn(2, 3, 8, 8, device="xla", requires_grad=True)
    compiled(x).sum().backward()
    handle = weakref.ref(x)
    del x
    assert handle() is None


def test_a_parameter_that_holds_other_tensors():
    layer = nn.Linear(4, 3)
    layer.weight = nn.Parameter(TwoTensor(layer.weight.data, layer.weight.data + 1))
    expected = layer(torch.ones(2, 4))
    layer.to("xla")
    compiled = torch.compile(layer, backend="openxla", fullgraph=True)
    with torch.no_grad():
        for added in (0, 2):
            layer.weight.add_(added)
            found = compiled(torch.ones(2, 4, device="xla"))
            for mine, theirs in zip((found.a, found.b), (expected.a, expected.b), strict=True):
                torch.testing.assert_close(mine.cpu(), theirs + 4 * added)
