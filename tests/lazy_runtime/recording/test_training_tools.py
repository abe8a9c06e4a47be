"""What scripts use around models and optimizers (LBFGS, averaged weights, padded encoders), as on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn

# torch's own, while Dynamo traces
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning"),
]


def _same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-8, atol=1e-9)


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, backend="openxla")


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs(search: str | None) -> None:
    def train(device: str, wrap: Callable[..., Any]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double().to(device)
        x, y = (torch.randn(6, size, dtype=torch.float64).to(device) for size in (3, 1))
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, line_search_fn=search)
        loss = wrap(lambda: (model(x) - y).square().mean())

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            found = loss()
            found.backward()
            return found

        losses = [optimizer.step(closure).detach().cpu() for _ in range(2)]
        return [*losses, *(each.detach().cpu() for each in model.parameters())]

    expected = train("cpu", lambda function: function)
    _same(train("xla", lambda function: function), expected)
    _same(train("xla", _compiled), expected)


@pytest.mark.parametrize("is_exponential", [False, True])
def test_averaged_models(is_exponential: bool) -> None:
    def train(device: str, wrap: Callable[..., Any]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh()).double().to(device)
        data = [torch.randn(6, 3, dtype=torch.float64).to(device) for _ in range(3)]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        function = get_ema_multi_avg_fn(0.9) if is_exponential else None
        averaged = AveragedModel(model, multi_avg_fn=function, use_buffers=is_exponential)
        schedule = SWALR(optimizer, swa_lr=0.05)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        call = wrap(step)
        for x in data:
            call(x)
            averaged.update_parameters(model)
            schedule.step()
        if not is_exponential:
            update_bn(data, averaged)
        return [each.detach().cpu().clone() for each in averaged.state_dict().values()]

    expected = train("cpu", lambda function: function)
    _same(train("xla", lambda function: function), expected)
    _same(train("xla", _compiled), expected)


def test_a_padded_encoder() -> None:
    """In evaluation torch's fast path on the CPU takes the padding out and gives zeros there: what is padded is no
    result, so only the rest is compared.
    """
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dtype=torch.float64)
    model = nn.TransformerEncoder(layer, 2).eval()
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    padding = torch.arange(5) >= torch.tensor([3, 5, 1])[:, None]

    def run(model: nn.Module, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        return model(x, src_key_padding_mask=padding).masked_fill(padding[..., None], 0)

    with torch.no_grad():
        expected = run(model, x, padding)
        given = copy.deepcopy(model).to("xla"), x.to("xla"), padding.to("xla")
        _same([run(*given).cpu(), _compiled(run)(*given).cpu(), _compiled(run)(model, x, padding)], [expected] * 3)
