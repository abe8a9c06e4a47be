"""Modules that move between xla and the CPU keep their parameters, and with them ties and optimizers."""

from __future__ import annotations

import copy
import gc
import warnings
import weakref

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(4, 3)
        self.head = torch.nn.Linear(3, 4, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.full((3,), 0.5))
        self.head.register_buffer("scale", self.scale)

    def forward(self, indices):
        return self.head(self.embedding(indices) * self.scale)


def indices(device):
    return torch.tensor([0, 1], device=device)


def train(model, optimizer, device):
    optimizer.zero_grad()
    model(indices(device)).square().sum().backward()
    optimizer.step()


def move_back(model):
    return model.to("xla").to("cpu").to("xla")


MOVES = {
    "to": lambda model: model.to("xla"),
    "to the first device": lambda model: model.to(torch.device("xla", 0)),
    "to a tensor's": lambda model: model.to(torch.ones(1, device="xla")),
    "with a dtype": lambda model: model.to("xla", torch.float64),
    "after a dtype": lambda model: model.double().to("xla"),
    "before dtypes": lambda model: model.to("xla").double().type(torch.float32),
    "back": move_back,
    "as a list": lambda model: torch.nn.ModuleList([model]).to("xla")[0],
    "compiled": lambda model: torch.compile(model, backend="openxla").to("xla")._orig_mod,
}


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_a_move_keeps_parameters(move):
    model = Tied()
    weight, reference, seen = model.head.weight, copy.deepcopy(model), weakref.ref(model.head.weight)
    weight.note = "mine"
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    moved = move(model)
    assert moved is model
    assert model.head.weight is model.embedding.weight is weight is seen()
    assert (type(weight), weight.device.type, weight.note) == (torch.nn.Parameter, "xla", "mine")
    assert list(model.state_dict()) == list(reference.state_dict())
    reference.to(weight.dtype)
    train(model, optimizer, "xla")
    train(reference, torch.optim.SGD(reference.parameters(), lr=1.0), "cpu")
    torch.testing.assert_close(weight.grad.cpu(), reference.head.weight.grad)
    torch.testing.assert_close(weight.detach().cpu(), reference.head.weight.detach())
    twin = copy.deepcopy(model)
    assert twin.head.weight is twin.embedding.weight


def test_the_way_back_keeps_gradients():
    model, reference = Tied(), Tied()
    reference.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model(indices("cpu")).square().sum().backward()
    weight, grad = model.head.weight, model.head.weight.grad
    model.to("xla", torch.float64)
    assert weight.grad is grad
    assert (grad.device.type, grad.dtype) == ("xla", torch.float64)
    optimizer.step()
    model.to("cpu", torch.float32)
    assert model.embedding.weight is weight
    assert weight.device.type == "cpu"
    assert weight.grad is grad
    train(reference, torch.optim.SGD(reference.parameters(), lr=1.0), "cpu")
    torch.testing.assert_close(weight, reference.head.weight)


def test_ties_between_modules_that_move_one_by_one():
    first, second = torch.nn.Linear(3, 3), torch.nn.LSTM(3, 3, num_layers=2)
    second.weight_ih_l1 = second.weight_ih_l0
    third = torch.nn.LSTM(3, 3)
    third.weight_hh_l0 = second.weight_hh_l0
    first.bias = third.bias_ih_l0 = torch.nn.Parameter(torch.zeros(3))
    modules = first, second, third
    expected = [each.device.type == "xla" for module in modules for each in module.parameters()]
    assert not any(expected)
    for module in modules:
        module.to("xla")
    assert second.weight_ih_l1 is second.weight_ih_l0
    assert third.weight_hh_l0 is second.weight_hh_l0
    assert first.bias is third.bias_ih_l0
    second(torch.ones(2, 1, 3, device="xla"))[0].sum().backward()
    assert third.weight_hh_l0.grad is not None


def test_a_shared_buffer_stays_shared():
    """Of CUDA's moves, and of changes of dtype, each makes a buffer of its own in each place."""
    model = Tied().to("xla")
    assert model.scale is model.head.scale
    model.to("cpu")
    assert model.scale is model.head.scale


def test_a_shared_buffer_does_not_move_for_others():
    """As on CUDA: a buffer that moves is another tensor."""
    constant = torch.ones(3)
    here, there = torch.nn.Module(), torch.nn.Module()
    here.register_buffer("constant", constant)
    there.register_buffer("constant", constant)
    there.to("xla")
    assert here.constant is constant
    assert constant.device.type == "cpu"
    assert there.constant.device.type == "xla"


def test_hooks_stay():
    layer = torch.nn.Linear(3, 2)
    called = []
    handle = layer.weight.register_hook(lambda gradient: called.append(gradient.device.type))
    layer.weight.register_post_accumulate_grad_hook(lambda parameter: called.append(parameter.grad.device.type))
    layer.to("xla")
    layer(torch.ones(1, 3, device="xla")).sum().backward()
    assert called == ["xla", "xla"]
    handle.remove()
    layer.to("cpu")
    layer(torch.ones(1, 3)).sum().backward()
    assert called == ["xla", "xla", "cpu"]


@pytest.mark.parametrize("kept", ["graph", "view"])
def test_a_graph_from_before_the_move(kept):
    layer = torch.nn.Linear(3, 2)
    y = layer(torch.ones(1, 3)) if kept == "graph" else layer.weight.view(-1)
    values = y.tolist()
    layer.to("xla")
    layer(torch.ones(1, 3, device="xla")).sum().backward()
    assert layer.weight.grad.tolist() == [[1, 1, 1], [1, 1, 1]]
    assert y.tolist() == values
    with pytest.raises(RuntimeError, match="has moved to or from xla since the forward pass"):
        y.sum().backward()
    assert layer.weight.grad.tolist() == [[1, 1, 1], [1, 1, 1]]


def test_a_gradient_with_a_graph_does_not_move():
    layer = torch.nn.Linear(3, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of create_graph
        layer(torch.ones(1, 3)).square().sum().backward(create_graph=True)
    with pytest.raises(RuntimeError, match="gradient has a graph"):
        layer.to("xla")
    layer.zero_grad()
    layer.to("xla")


def test_what_cannot_follow_is_an_error_and_changes_nothing():
    layer = torch.nn.Linear(3, 2)
    layer.weight.grad = torch.ones(2, 3)
    held = torch._C._WeakTensorRef(layer.weight)  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(RuntimeError, match=r"Linear.weight cannot move to or from xla in place \(Expected no weakrefs"):
        layer.to("xla")
    assert layer.weight.device.type == "cpu"
    assert layer.weight.grad.tolist() == [[1, 1, 1], [1, 1, 1]]
    del held
    assert layer.to("xla").weight.grad.device.type == "xla"


def test_torchs_own_ways_stay_the_users_to_choose():
    for switch in (
        torch.__future__.set_swap_module_params_on_conversion,
        torch.__future__.set_overwrite_module_params_on_conversion,
    ):
        switch(True)
        try:
            layer = torch.nn.Linear(3, 2)
            before = layer.weight
            assert (layer.to("xla").weight is before) == ("swap" in switch.__name__)
        finally:
            switch(False)


def test_optimizer_state_stays_until_it_is_loaded():
    model, reference = Tied(), Tied()
    reference.load_state_dict(model.state_dict())
    optimizer, expected = (torch.optim.Adam(each.parameters(), lr=0.1) for each in (model, reference))
    train(model, optimizer, "cpu")
    model.to("xla")
    optimizer.load_state_dict(optimizer.state_dict())
    train(model, optimizer, "xla")
    for _ in range(2):
        train(reference, expected, "cpu")
    torch.testing.assert_close(model.head.weight.detach().cpu(), reference.head.weight.detach())


def test_a_step_that_would_mix_devices_is_an_error():
    """As on CUDA, where the state stays behind too."""
    model = Tied()
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer, "cpu")
    model.to("xla")
    assert {state["exp_avg"].device.type for state in optimizer.state.values()} == {"cpu"}
    with pytest.raises(RuntimeError, match="same device"):
        train(model, optimizer, "xla")


@pytest.mark.parametrize("source", ["meta", "cpu"])
def test_to_empty(source):
    with torch.device(source):
        model = Tied()
    weight = model.head.weight
    model.to_empty(device="xla")
    assert model.embedding.weight is model.head.weight is weight
    assert weight.device.type == "xla"
    assert model.scale is model.head.scale


LAZY = {
    "LazyLinear": (lambda: torch.nn.LazyLinear(2), (4, 3)),
    "LazyBilinear": (lambda: Pair(), (4, 3)),
    "LazyConv1d": (lambda: torch.nn.LazyConv1d(2, 3), (2, 3, 8)),
    "LazyConv2d": (lambda: torch.nn.LazyConv2d(2, 3), (2, 3, 8, 8)),
    "LazyConvTranspose2d": (lambda: torch.nn.LazyConvTranspose2d(2, 3), (2, 3, 8, 8)),
    "LazyBatchNorm1d": (lambda: torch.nn.LazyBatchNorm1d(), (4, 3)),
    "LazyInstanceNorm2d": (lambda: torch.nn.LazyInstanceNorm2d(affine=True), (2, 3, 8, 8)),
}


class Pair(torch.nn.Module):
    """A lazy layer within a module."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.LazyLinear(5), torch.nn.ReLU(), torch.nn.LazyLinear(2))

    def forward(self, x):
        return self.layers(x)


@pytest.mark.parametrize(("make", "shape"), LAZY.values(), ids=LAZY)
def test_lazy_modules_before_they_have_sizes(make, shape):
    model = make().to("xla")
    parameters = list(model.parameters())
    x = torch.randn(shape)
    y = model(x.to("xla"))
    assert all(parameter.device.type == "xla" for parameter in [*model.parameters(), *model.buffers()])
    assert all(type(parameter) is torch.nn.Parameter for parameter in parameters)
    reference = copy.deepcopy(model).to("cpu")
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    model(x.to("xla")).square().sum().backward()
    reference(x).square().sum().backward()
    for ours, expected in zip(parameters, reference.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.cpu(), expected.grad, rtol=1e-3, atol=1e-4)
    optimizer.step()
    assert y.shape == reference(x).shape


def test_a_lazy_module_comes_back_before_it_has_sizes():
    model = torch.nn.LazyLinear(2).to("xla").to("cpu")
    assert model(torch.ones(1, 3)).device.type == "cpu"


def test_a_subclass_of_parameter_stays_one():
    class Quantized(torch.nn.Parameter):
        bits = 8

    layer = torch.nn.Linear(3, 2)
    layer.weight = Quantized(torch.ones(2, 3))
    layer.to("xla")
    assert type(layer.weight) is Quantized
    assert layer.weight.device.type == "xla"
    assert layer(torch.ones(1, 3, device="xla")).device.type == "xla"


@pytest.mark.parametrize("normed", [torch.nn.utils.parametrizations.weight_norm, torch.nn.utils.spectral_norm])
def test_parametrizations(normed):
    torch.manual_seed(0)
    model = normed(torch.nn.Linear(3, 2))
    parameters, reference = list(model.parameters()), copy.deepcopy(model)
    model.to("xla")
    assert all(ours is before for ours, before in zip(model.parameters(), parameters, strict=True))
    for each, device in ((model, "xla"), (reference, "cpu")):
        each(torch.ones(1, 3, device=device)).square().sum().backward()
    for ours, expected in zip(parameters, reference.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.cpu(), expected.grad)


def test_a_compiled_module_moves_to_and_fro():
    model = Tied()
    compiled = torch.compile(model, backend="openxla")
    expected = model(indices("cpu")).detach()
    for device in ("cpu", "xla", "cpu", "xla"):
        compiled.to(device)
        assert model.head.weight is model.embedding.weight
        model.zero_grad()
        y = compiled(indices(device))
        torch.testing.assert_close(y.detach().cpu(), expected)
        y.sum().backward()
        assert model.head.weight.grad.device.type == device
        with torch.no_grad():
            torch.testing.assert_close(compiled(indices(device)).cpu(), expected)


def test_dynamo_traces_moves_that_change_nothing():
    layer = torch.nn.Linear(3, 2)
    traced = torch.compile(lambda x: layer.to("cpu")(x), backend="openxla", fullgraph=True)
    if torch.__version__ < (2, 12):  # whose Dynamo traces no `Parameter()`, which torch's own move calls
        with pytest.raises(torch._dynamo.exc.Unsupported, match=r"torch\.nn\.Parameter"):
            traced(torch.ones(1, 3))
    else:
        torch.testing.assert_close(traced(torch.ones(1, 3)), layer(torch.ones(1, 3)))


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_scripted_modules():
    model = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh()))
    x = torch.ones(1, 3)
    expected = model(x).detach()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model.to("xla")
    y = model(x.to("xla"))
    torch.testing.assert_close(y.detach().cpu(), expected)
    y.sum().backward()
    optimizer.step()
    assert not torch.equal(model(x.to("xla")).detach().cpu(), expected)


def test_a_wrapped_module_refuses():
    """The reducer of `DistributedDataParallel` keeps the parameters that it was made with."""

    def refuses() -> None:
        model = torch.nn.Sequential(torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2)))
        with pytest.raises(RuntimeError, match="Move the module before it is wrapped"):
            model.to("xla")
        model(torch.ones(1, 3)).sum().backward()

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        refuses()
        # A reducer with the last reference to the group waits in its destructor, with the GIL, for threads of gloo's
        # that may want the GIL. So it goes first.
        gc.collect()
    finally:
        torch.distributed.destroy_process_group()


def test_moves_that_do_not_cross_are_torchs():
    layer = torch.nn.Linear(3, 2)
    weight, memory = layer.weight, layer.weight.data_ptr()
    layer.to("cpu")
    assert layer.weight is weight
    assert weight.data_ptr() == memory
    assert layer.to("meta").weight is not weight  # torch's own way between kinds of tensors
    layer = torch.nn.Linear(3, 2).to("xla")
    weight = layer.weight
    assert layer.to("xla").half().weight is weight


def test_a_move_under_a_dispatch_mode():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    plain = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(2, 3)
    with FlopCounterMode(display=False) as counter:
        model.to("xla")
        model(x.to("xla")).sum().backward()
    assert counter.get_total_flops() > 0
    plain(x).sum().backward()
    torch.testing.assert_close(model[0].weight.grad.cpu(), plain[0].weight.grad)
    optimizer.step()
    expected = plain[0].weight.detach() - 0.1 * plain[0].weight.grad
    torch.testing.assert_close(model.to("cpu")[0].weight.detach(), expected)
