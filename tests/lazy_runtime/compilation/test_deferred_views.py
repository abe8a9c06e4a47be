"""Views in eager mode."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import lazy_runtime
from lazy_runtime.common import metrics
from lazy_runtime.compilation import deferred_views
from lazy_runtime.platform import xla_devices
from lazy_runtime.torch_xla import experimental


@pytest.fixture(autouse=True)
def eager(clean: None) -> Iterator[None]:
    experimental.eager_mode(True)
    metrics.clear()
    yield
    experimental.eager_mode(False)


def numbers(*shape: int) -> torch.Tensor:
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape)


def executions() -> int:
    return metrics.value("ExecuteComputation")


def test_a_view_is_a_part_of_what_reads_it():
    x, y = numbers(2, 3).to("xla"), numbers(2, 4).to("xla")
    view = x.t()
    assert executions() == 0
    product = view @ y
    assert executions() == 1
    assert torch.equal(product.cpu(), numbers(2, 3).t() @ numbers(2, 4))
    assert executions() == 1
    assert view.tolist() == numbers(2, 3).t().tolist()  # read itself, it is executed
    assert executions() == 2
    assert view.tolist() == numbers(2, 3).t().tolist()
    assert executions() == 2


def test_views_of_views_and_their_number():
    x = numbers(2, 3, 4).to("xla")
    y = x.permute(2, 0, 1).unsqueeze(0).expand(5, 4, 2, 3).transpose(1, 2)
    assert executions() == 0
    expected = numbers(2, 3, 4).permute(2, 0, 1).unsqueeze(0).expand(5, 4, 2, 3).transpose(1, 2)
    assert torch.equal((y + 1).cpu(), expected + 1)
    z = x
    for _ in range(3 * deferred_views.DEPTH):
        z = z.transpose(0, 2)
    assert 1 < executions() < 10
    assert torch.equal(z.cpu(), numbers(2, 3, 4))


def test_parts_are_executed():
    x = numbers(4, 3).to("xla")
    row = x[1]
    assert executions() == 1
    parts = x.split(2)
    assert [part.tolist() for part in (row, *parts)] == [
        numbers(4, 3)[1].tolist(),
        *[part.tolist() for part in numbers(4, 3).split(2)],
    ]


def test_what_a_view_shows_is_kept():
    """The sum is the last reader of `x`, whose buffer could else be reused for the result."""
    x = numbers(3, 3).to("xla") + 1
    view = x.detach().t()
    for _ in range(3):
        x = x * 2
    assert torch.equal(view.cpu(), numbers(3, 3).t() + 1)
    assert torch.equal(x.cpu(), (numbers(3, 3) + 1) * 8)


def test_writes_through_views():
    found = []
    for device in ("cpu", "xla"):
        x = numbers(2, 3).to(device)
        y = x.t()
        x.mul_(2)
        y.add_(1)
        z = y.reshape(-1)
        x[0] = 7
        found.append([x.cpu().tolist(), y.cpu().tolist(), z.cpu().tolist()])
    assert found[0] == found[1]


def test_lazy_mode_and_regions_read_them():
    x = numbers(2, 3).to("xla")
    early, late = x.t(), x.unsqueeze(0)

    @lazy_runtime.compile(full_graph=True)
    def step(a):
        assert early.tolist() == numbers(2, 3).t().tolist()  # it does not wait for what is traced
        return a.sum() + late.sum()

    assert step(x.view(6)).item() == 30
    experimental.eager_mode(False)
    assert (late * 2).sum().item() == 30
    assert torch.equal(x.cpu(), numbers(2, 3))


def test_compiled_functions_read_them():
    compiled = torch.compile(lambda x: x * 2, backend="openxla")
    x = numbers(2, 3).to("xla").t()
    assert torch.equal(compiled(x).cpu(), numbers(2, 3).t() * 2)


def test_training():
    """Weights are transposed back and forth in autograd's formulas; nothing of that is executed."""
    losses = []
    for device in ("cpu", "xla"):
        torch.manual_seed(0)
        layer = torch.nn.Linear(3, 2, bias=False).to(device)
        optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            loss = layer(numbers(4, 3).to(device)).square().mean()
            loss.backward()
            optimizer.step()
        losses.append(loss.cpu())
    torch.testing.assert_close(losses[1], losses[0])
    assert metrics.value("xla::t_copy") > 0
    before = executions()
    layer(numbers(4, 3).to("xla"))
    assert executions() == before + 1


def test_a_view_that_nobody_reads_is_let_go():
    x = numbers(2, 3).to("xla")
    for _ in range(3):
        x.t().unsqueeze(0)
    assert executions() == 0
    assert not any(device.pending for device in xla_devices.devices())
