"""Recurrent layers in compiled functions: one operator for each direction of each layer, without a graph break."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

from openxla_backend.dynamo import recurrent_layers
from tests.openxla_backend.helpers import compiled

# torch's own: of Dynamo while it traces, and of oneDNN
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN:UserWarning"),
]

dynamo = torch._dynamo.utils.counters


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    dynamo.clear()


def test_this_torch_can_be_made_to_trace_them() -> None:
    assert recurrent_layers.is_possible()


def _results(function: Any, model: Any, x: Any, device: str = "cpu", autocast: bool = False) -> list[torch.Tensor]:
    with torch.autocast(device, torch.bfloat16, enabled=autocast):
        output, state = function(model, x)
    loss = output.double().cos().sum() + sum(each.double().sin().sum() for each in state)
    return [output.detach(), *(each.detach() for each in state), *torch.autograd.grad(loss, list(model.parameters()))]


def _call(model: Any, x: Any) -> Any:
    output, state = model(x * 2)
    return output, list(state) if isinstance(state, tuple) else [state]


def _close(found: Any, expected: Any, tolerance: float = 1e-10) -> None:
    for x, y in zip(found, expected, strict=True):
        assert x.dtype == y.dtype
        torch.testing.assert_close(x.cpu(), y, rtol=tolerance, atol=tolerance)


LAYERS = [
    (torch.nn.LSTM, {"num_layers": 2, "bidirectional": True}),
    (torch.nn.LSTM, {"proj_size": 2, "batch_first": True}),
    (torch.nn.GRU, {"bias": False}),
    (torch.nn.RNN, {"nonlinearity": "relu"}),
    (torch.nn.RNN, {}),
]


@pytest.mark.parametrize(("layer", "options"), LAYERS)
@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_layers_are_eagers(device: str, layer: Any, options: dict[str, Any]) -> None:
    model = layer(3, 4, dtype=torch.float64, **options)
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    expected = _results(_call, model, x)
    found = _results(compiled(_call, fullgraph=True), copy.deepcopy(model).to(device), x.to(device))
    _close(found, expected)


@pytest.mark.parametrize(("layer", "options"), LAYERS[1:4])
def test_autocast_on_the_cpu(layer: Any, options: dict[str, Any]) -> None:
    """In the dtypes of torch's kernels, which differ from layer to layer, and near their numbers."""
    model = layer(3, 4, **options)
    x = torch.randn(5, 2, 3)
    expected = _results(_call, model, x, autocast=True)
    found = _results(compiled(_call, fullgraph=True), model, x, autocast=True)
    _close(found, expected, tolerance=5e-2)


def test_the_lstm_of_onednn_casts_its_cell_too() -> None:
    model = torch.nn.LSTM(3, 4)
    x = torch.randn(5, 2, 3)
    found = _results(compiled(_call, fullgraph=True), model, x, autocast=True)
    _close(found, _results(_call, model, x, autocast=True), tolerance=5e-2)


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_another_number_of_steps_is_the_same_graph(device: str) -> None:
    model = torch.nn.GRU(3, 4, dtype=torch.float64)
    fast = compiled(copy.deepcopy(model).to(device), dynamic=True, fullgraph=True)
    for steps in (5, 7, 9):
        x = torch.randn(steps, 3, 3, dtype=torch.float64)
        _close([fast(x.to(device))[0].detach()], [model(x)[0].detach()])
    assert dynamo["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_packed_sequences(device: str) -> None:
    """Torch reads the first batch's size, so Dynamo leaves the layer to Python."""
    model = torch.nn.LSTM(3, 4, dtype=torch.float64)
    x = pack_padded_sequence(torch.randn(5, 3, 3, dtype=torch.float64), torch.tensor([3, 5, 1]), enforce_sorted=False)

    def packed(model: Any, x: Any) -> Any:
        output, state = model(x)
        return output.data * 2, list(state)

    expected = _results(packed, model, x)
    _close(_results(compiled(packed), copy.deepcopy(model).to(device), x.to(device)), expected)


def test_a_whole_training_step_is_one_graph() -> None:
    def train(device: str, wrap: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.LSTM(3, 4, num_layers=2, dtype=torch.float64).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.randn(5, 2, 3, dtype=torch.float64).to(device)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x)[0].square().mean()
            loss.backward()
            optimizer.step()
            return loss

        step = wrap(step)
        losses = [step(x).detach().cpu() for _ in range(3)]
        return [*losses, *(each.detach().cpu() for each in model.parameters())]

    expected = train("cpu", lambda step: step)
    _close(train("xla", compiled), expected)
    assert not dynamo["graph_break"]
