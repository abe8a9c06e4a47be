"""Recurrent layers as loops, against eager PyTorch on the CPU in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.utils import _pytree as pytree

from lazy_runtime.common import metrics
from lazy_runtime.torch_xla.debug.metrics import counter_names
from lazy_runtime.torch_xla.experimental import eager_mode

LAYERS: dict[str, Callable[..., torch.nn.Module]] = {
    "lstm": torch.nn.LSTM,
    "lstm_projected": lambda *args, **kwargs: torch.nn.LSTM(*args, proj_size=2, **kwargs),
    "gru": torch.nn.GRU,
    "rnn_tanh": torch.nn.RNN,
    "rnn_relu": lambda *args, **kwargs: torch.nn.RNN(*args, nonlinearity="relu", **kwargs),
}


def _results(model: Any, x: Any, state: Any) -> list[torch.Tensor]:
    """Outputs, last states, and the gradients of a function of them all."""
    output, last = model(x, state)
    output = output.data if isinstance(output, PackedSequence) else output
    results = [output, *pytree.tree_leaves(last)]
    loss = sum((result * _numbers(result)).sum() for result in results)
    leaves = [*model.parameters(), x.data if isinstance(x, PackedSequence) else x, *pytree.tree_leaves(state)]
    return [*(each.detach() for each in results), *torch.autograd.grad(loss, leaves)]


def _numbers(like: torch.Tensor) -> torch.Tensor:
    return torch.linspace(-1, 1, like.numel(), dtype=torch.float64).view(like.shape).to(like.device)


def _state(model: Any, batch: int) -> Any:
    directions = model.num_layers * (2 if model.bidirectional else 1)
    hidden = torch.randn(directions, batch, model.proj_size or model.hidden_size, dtype=torch.float64)
    if not isinstance(model, torch.nn.LSTM):
        return hidden
    return hidden, torch.randn(directions, batch, model.hidden_size, dtype=torch.float64)


def _moved(tree: Any) -> Any:
    return pytree.tree_map(lambda x: x.detach().to("xla").requires_grad_(), tree)


def _close(found: Any, expected: Any) -> None:
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x.cpu(), y, rtol=1e-10, atol=1e-10)


def _layer(name: str, **options: Any) -> Any:
    return LAYERS[name](3, 4, dtype=torch.float64, **options)


MANY = {"num_layers": 2, "bidirectional": True, "batch_first": True}
CASES = [("lstm", {}), ("lstm_projected", {"bias": False}), *((name, MANY) for name in LAYERS)]


@pytest.mark.parametrize("is_packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_layers_are_eagers(name: str, options: dict[str, Any], is_packed: bool) -> None:
    model = _layer(name, **options)
    shape = (3, 5, 3) if options.get("batch_first") else (5, 3, 3)
    x: Any = torch.randn(shape, dtype=torch.float64)
    if is_packed:
        x = pack_padded_sequence(x, torch.tensor([3, 5, 1]), options.get("batch_first", False), enforce_sorted=False)
    state = pytree.tree_map(lambda each: each.requires_grad_(), _state(model, 3))
    (x.data if is_packed else x).requires_grad_()
    expected = _results(model, x, state)
    moved = copy.deepcopy(model).to("xla")
    there = x.to("xla") if is_packed else _moved(x)
    if is_packed:
        there.data.detach_().requires_grad_()
    _close(_results(moved, there, _moved(state)), expected)


def test_the_number_of_steps_is_not_that_of_the_operators() -> None:
    model = _layer("lstm", num_layers=2).to("xla")

    def recorded(steps: int) -> int:
        model.zero_grad()
        metrics.clear()
        model(torch.randn(steps, 2, 3, dtype=torch.float64, device="xla"))[0].sum().backward()
        return sum(metrics.value(name) for name in counter_names() if name.startswith("xla::"))

    assert recorded(50) == recorded(5)


def test_eager_mode_and_dropout() -> None:
    model = _layer("gru", num_layers=2, dropout=0.5)
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    moved = copy.deepcopy(model).to("xla")
    eager_mode(True)
    first, second = (moved(x.to("xla"))[0] for _ in range(2))
    assert not torch.equal(first, second)
    _close([moved.eval()(x.to("xla"))[0].detach()], [model.eval()(x)[0].detach()])
    with torch.inference_mode():
        _close([moved(x.to("xla"))[0].clone()], [model(x)[0]])


@pytest.mark.parametrize(
    ("name", "is_packed"), [("lstm", False), ("lstm_projected", True), ("gru", True), ("rnn_tanh", False)]
)
def test_second_derivatives(name: str, is_packed: bool) -> None:
    def derivatives(model: Any, x: torch.Tensor) -> Any:
        data = x.detach().requires_grad_()
        packed = PackedSequence(data, torch.tensor([3, 2, 1])) if is_packed else data.view(3, 2, 3)
        output, state = model(packed)
        output = output.data if is_packed else output
        loss = (output.sin().sum(), *(each.cos().sum() for each in pytree.tree_leaves(state)))
        (first,) = torch.autograd.grad(sum(loss), data, create_graph=True)
        return torch.autograd.grad(first.square().sum(), [data, *model.parameters()], allow_unused=True)

    model = _layer(name)
    x = torch.randn(6, 3, dtype=torch.float64)
    expected = derivatives(model, x)
    found = derivatives(copy.deepcopy(model).to("xla"), x.to("xla"))
    assert [each is None for each in found] == [each is None for each in expected]
    _close([each for each in found if each is not None], [each for each in expected if each is not None])


# torch's own decompositions for forward mode
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_forward_mode_and_functional_derivatives() -> None:
    model = _layer("lstm")
    x = torch.randn(3, 2, 3, dtype=torch.float64)
    moved = copy.deepcopy(model).to("xla")

    def derivatives(model: Any, x: torch.Tensor) -> list[torch.Tensor]:
        with torch.no_grad():
            _, tangent = torch.func.jvp(lambda x: model(x)[0], (x,), (torch.ones_like(x),))
        return [tangent, torch.func.grad(lambda x: model(x)[0].sin().sum())(x)]

    _close(
        [each.detach() for each in derivatives(moved, x.to("xla"))], [each.detach() for each in derivatives(model, x)]
    )


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("name", "options"), [("LSTM", {}), ("GRU", {"batch_first": True}), ("RNN", {"num_layers": 2})]
)
def test_results_can_be_written_to(name: str, options: dict[str, Any], compiled: bool) -> None:
    def gradients(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = getattr(torch.nn, name)(3, 4, **options).double()
        x = torch.rand(5, 2, 3, dtype=torch.float64)
        model, x = model.to(device), x.to(device)

        def loss(x: torch.Tensor) -> torch.Tensor:
            output = model(x)[0]
            output[..., :2].mul_(3)
            return output.square().sum()

        (torch.compile(loss, backend="openxla") if compiled and device != "cpu" else loss)(x).backward()
        return [p.grad.cpu() for p in model.parameters() if p.grad is not None]

    _close(gradients("xla"), gradients("cpu"))


def test_what_is_no_layer_is_refused_as_on_the_cpu() -> None:
    def message(device: str) -> str:
        gru = _layer("gru").to(device)
        weights = [each.detach() for each in gru.parameters()]
        x = torch.randn(5, 2, 7, dtype=torch.float64, device=device)
        hidden = torch.zeros(1, 2, 4, dtype=torch.float64, device=device)
        with pytest.raises(RuntimeError) as found:
            torch.gru(x, hidden, weights, True, 1, 0.0, True, False, False)
        return str(found.value).partition("(")[0]  # before the sizes: the CPU multiplies all steps at once

    assert message("xla") == message("cpu")


def test_a_gradient_of_a_state_alone() -> None:
    model = _layer("lstm")
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    moved = copy.deepcopy(model).to("xla")
    for index in (0, 1):
        expected = torch.autograd.grad(model(x)[1][index].sin().sum(), list(model.parameters()))
        found = torch.autograd.grad(moved(x.to("xla"))[1][index].sin().sum(), list(moved.parameters()))
        _close(found, expected)
