"""`flex_attention`, which torch composes of other operators: lazily, compiled, and compiled on CPU tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from lazy_runtime.recording import flex_attention as ours

# torch's own: that its composition has all scores in memory, and of Dynamo while it traces
pytestmark = [
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]

SIZE = 128


def test_this_torch_has_what_is_exchanged() -> None:
    assert ours.is_possible()


def _causal(b: Any, h: Any, row: Any, column: Any) -> Any:
    return row >= column


def with_mask(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
    mask = create_block_mask(_causal, None, None, SIZE, SIZE, device=query.device.type)
    return flex_attention(query, key, value, block_mask=mask)


def with_score(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
    slope = torch.arange(1.0, 3.0, dtype=torch.float64, device=query.device)

    def score(score: Any, b: Any, h: Any, row: Any, column: Any) -> Any:
        return score + slope[h] * (column - row) / SIZE

    return flex_attention(query, key, value, score_mod=score, enable_gqa=True)


def _inputs(heads: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(1, each, SIZE, 4, dtype=torch.float64) for each in (2, heads, heads)]


@pytest.mark.parametrize(("function", "heads"), [(with_mask, 2), (with_score, 1)])
def test_results_are_eagers(function: Callable[..., Any], heads: int) -> None:
    inputs = _inputs(heads)
    torch._dynamo.reset()
    expected = function(*inputs)
    for device in ("xla", "cpu"):
        given = [x.to(device) for x in inputs]
        fast = torch.compile(function, backend="openxla")
        for found in [function(*given), fast(*given)] if device == "xla" else [fast(*given)]:
            torch.testing.assert_close(found.cpu(), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_gradients_are_those_of_the_composition(is_compiled: bool) -> None:
    """Torch has none on the CPU."""
    inputs = [x.requires_grad_() for x in _inputs(2)]
    query, key, value = inputs
    place = torch.arange(SIZE)
    scores = (query @ key.mT / 2).masked_fill(place[:, None] < place, -float("inf"))
    expected = torch.autograd.grad((scores.softmax(-1) @ value).sin().sum(), inputs)
    torch._dynamo.reset()
    given = [x.detach().to("xla").requires_grad_() for x in inputs]
    function = torch.compile(with_mask, backend="openxla") if is_compiled else with_mask
    found = torch.autograd.grad(function(*given).sin().sum(), given)
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x.cpu(), y, rtol=1e-10, atol=1e-10)
