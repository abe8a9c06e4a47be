"""Our kernel for recurrent layers, by itself against torch's layers in float64, and where it is taken."""

from __future__ import annotations

import pytest
import torch

from lazy_runtime.debug import graphs
from lazy_runtime.ops.nn import recurrence_native
from lazy_runtime.ops.nn.recurrence_native import MODES, RecurrenceProblem
from tests import native_part

pytestmark = native_part.need_kernel(recurrence_native._is_built, expected=True)

LAYERS = {
    "lstm": (torch.nn.LSTM, {}),
    "gru": (torch.nn.GRU, {}),
    "rnn_tanh": (torch.nn.RNN, {"nonlinearity": "tanh"}),
    "rnn_relu": (torch.nn.RNN, {"nonlinearity": "relu"}),
}


def layer_of(mode, features, **options):
    kind, named = LAYERS[mode]
    return kind(features, features, **named, **options)


def kernel(mode, layer, x, hidden, cell, reverse=False):
    suffix = "_l0_reverse" if reverse else "_l0"
    weights = {name: getattr(layer, name + suffix, None) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
    gates = torch.nn.functional.linear(x, weights["weight_ih"], weights["bias_ih"])
    return torch.ops.lazy_runtime_kernels.recurrence(
        MODES[mode][0], gates, hidden, cell, weights["weight_hh"], weights["bias_hh"], reverse
    )


@pytest.mark.parametrize("mode", LAYERS)
@pytest.mark.parametrize(("steps", "batch", "features"), [(1, 1, 16), (5, 3, 48), (7, 8, 160), (3, 5, 512)])
@pytest.mark.parametrize("bias", [True, False])
def test_kernel(mode, steps, batch, features, bias):
    layer = layer_of(mode, features, bias=bias)
    x, hidden = torch.randn(steps, batch, features), torch.randn(batch, features)
    cell = torch.randn(batch, features) if mode == "lstm" else None
    with torch.no_grad():
        output, last, last_cell, reserve = kernel(mode, layer, x, hidden, cell)
        wide = layer.double()
        state = hidden[None].double() if cell is None else (hidden[None].double(), cell[None].double())
        expected, states = wide(x.double(), state)
    torch.testing.assert_close(output.double(), expected, rtol=1e-5, atol=2e-6)
    if cell is not None:
        torch.testing.assert_close(last_cell.double(), states[1][0], rtol=1e-5, atol=2e-6)
    assert torch.equal(last, output[-1])
    assert reserve.shape == (steps, batch, MODES[mode][1] * features)


@pytest.mark.parametrize("mode", LAYERS)
def test_backwards_in_time(mode):
    layer = layer_of(mode, 32, bidirectional=True)
    x = torch.randn(6, 2, 32)
    hidden = torch.zeros(2, 32)
    with torch.no_grad():
        output, last, *_ = kernel(mode, layer, x, hidden, hidden if mode == "lstm" else None, reverse=True)
        expected, _ = layer(x)
    torch.testing.assert_close(output, expected[..., 32:], rtol=1e-5, atol=2e-6)
    assert torch.equal(last, output[0])


@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_what_the_backward_pass_reads(mode):
    layer, x = layer_of(mode, 16), torch.randn(1, 2, 16)
    hidden = torch.randn(2, 16)
    cell = torch.randn(2, 16) if mode == "lstm" else None
    with torch.no_grad():
        output, _, last_cell, reserve = kernel(mode, layer, x, hidden, cell)
        of_input = torch.nn.functional.linear(x[0], layer.weight_ih_l0, layer.bias_ih_l0)
        of_hidden = torch.nn.functional.linear(hidden, layer.weight_hh_l0, layer.bias_hh_l0)
    if mode == "lstm":
        enter, forget, new, out = (of_input + of_hidden).chunk(4, 1)
        expected = [enter.sigmoid(), forget.sigmoid(), new.tanh(), out.sigmoid(), last_cell]
    else:
        of_hidden = of_hidden.chunk(3, 1)
        reset, update = ((a + b).sigmoid() for a, b in zip(of_input.chunk(3, 1)[:2], of_hidden[:2], strict=True))
        expected = [reset, update, (of_input.chunk(3, 1)[2] + reset * of_hidden[2]).tanh(), of_hidden[2]]
    torch.testing.assert_close(reserve[0], torch.cat(expected, 1), rtol=1e-5, atol=2e-6)
    assert output.shape == (1, 2, 16)


@pytest.mark.parametrize("mode", LAYERS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 200.0, -200.0, 1e-30])
def test_far_values(mode, value):
    layer = layer_of(mode, 16)
    x, state = torch.full((1, 1, 16), value), torch.zeros(1, 16)
    with torch.no_grad():
        layer.weight_ih_l0.copy_(torch.eye(16).repeat(layer.weight_ih_l0.shape[0] // 16, 1))
        output, *_ = kernel(mode, layer, x, state, state if mode == "lstm" else None)
        expected, _ = layer(x)
    torch.testing.assert_close(output, expected, equal_nan=True, rtol=1e-5, atol=1e-6)


def test_kernel_refuses():
    call = torch.ops.lazy_runtime_kernels.recurrence
    gates, hidden, weight = torch.ones(2, 3, 64), torch.ones(3, 16), torch.ones(64, 16)
    call(0, gates, hidden, hidden, weight, None, False)
    for wrong in (
        (0, gates, hidden, None, weight, None, False),
        (1, gates, hidden, None, weight, None, False),
        (0, gates, hidden.double(), hidden, weight, None, False),
        (0, gates, torch.ones(2, 16), torch.ones(2, 16), weight, None, False),
        (0, gates, hidden, hidden, torch.ones(16, 64), None, False),
        (0, gates, hidden, hidden, weight, torch.ones(3), False),
        (0, torch.ones(0, 3, 64), hidden, hidden, weight, None, False),
        (4, gates, hidden, hidden, weight, None, False),
    ):
        with pytest.raises(RuntimeError, match="a recurrence of"):
            call(*wrong)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, ""),
        ({"dtypes": frozenset({"float32", "bfloat16"})}, "bfloat16 and float32"),
        ({"is_packed": True}, "packed"),
        ({"is_projected": True}, "projections"),
        ({"features": 20}, "20 features"),
        ({"gates": (3, 0, 64)}, "no sequence"),
        ({"platform": "cuda"}, "not for cuda"),
    ],
)
def test_when_it_is_taken(changed, reason):
    problem = RecurrenceProblem("lstm", (3, 2, 64), 16, frozenset({"float32"}), "cpu")._replace(**changed)
    verdict = recurrence_native.accepts(problem)
    assert bool(verdict) == (not reason)
    assert reason in str(verdict)


@pytest.mark.parametrize("mode", LAYERS)
def test_a_layer_on_xla_calls_it_for_each_direction(mode):
    kind, named = LAYERS[mode]
    layer = kind(24, 32, num_layers=2, bidirectional=True, **named)
    x = torch.randn(5, 3, 24)

    def train(device):
        ours = kind(24, 32, num_layers=2, bidirectional=True, **named).to(device)
        ours.load_state_dict(layer.state_dict())
        output, _ = ours(x.to(device))
        return output, torch.autograd.grad(output.square().sum(), list(ours.parameters()))

    found, gradients = train("xla")
    assert graphs.stablehlo([found]).count("lazy_runtime_kernels::recurrence") == 4
    expected, expected_gradients = train("cpu")
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=2e-6)
    for mine, theirs in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-4, atol=1e-4)
