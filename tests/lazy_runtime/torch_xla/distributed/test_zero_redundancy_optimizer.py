"""PyTorch/XLA's ZeRO-1 on ranks, against one process on the CPU with the whole batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import lazy_runtime
from lazy_runtime.torch_xla.core import xla_model as xm
from lazy_runtime.torch_xla.distributed.zero_redundancy_optimizer import ZeroRedundancyOptimizer

STEPS = 4


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x):
        return self.layers(x) * self.scale


def batch(step: int) -> torch.Tensor:
    return torch.randn(8, 3, generator=torch.Generator().manual_seed(step))


def mine(x: torch.Tensor) -> torch.Tensor:
    count = len(x) // xm.xrt_world_size()
    return x[count * xm.get_ordinal() :][:count].to("xla")


def alone() -> tuple[list[torch.Tensor], list[float]]:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    norms = []
    for step in range(STEPS):
        optimizer.zero_grad()
        model(batch(step)).pow(2).mean().backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.3).item())
        optimizer.step()
        scheduler.step()
    return [each.detach() for each in model.parameters()], norms


def train(resumes: bool, options: dict[str, Any]) -> tuple[list[torch.Tensor], list[float], list[int]]:
    model = Net().to("xla")

    def make(lr: float) -> ZeroRedundancyOptimizer:
        return ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.SGD, max_norm=0.3, lr=lr, momentum=0.9, **options
        )

    optimizer = make(0.05)
    if options.get("lazy_init"):
        optimizer.sharding_groups = [[0, 1]]
        optimizer.init_zero()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    norms = []
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        model(mine(batch(step))).pow(2).mean().backward()
        optimizer.step()
        assert optimizer.grad_norm is not None
        norms.append(optimizer.grad_norm.item())
        scheduler.step()
        lazy_runtime.sync()
        if resumes and step == 1:
            state, schedule = optimizer.state_dict(), scheduler.state_dict()
            if options.get("save_master_weights"):
                with torch.no_grad():
                    model.scale.zero_()
            optimizer = make(1.0)
            optimizer.load_state_dict(state)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
            scheduler.load_state_dict(schedule)
    kept = [each.numel() for state in optimizer.state_dict()["base_state"].values() for each in state.values()]
    return [each.detach().cpu() for each in model.parameters()], norms, kept


@pytest.mark.parametrize(
    ("resumes", "options"),
    [
        (False, {}),
        (True, {"save_master_weights": True}),
        (True, {}),
        (False, {"use_grad_acc_hook": True, "higher_cc_precision": True}),
        (False, {"lazy_init": True, "bucket_cap_mb_all_gather": 1}),
    ],
)
def test_training(ranks, resumes, options):
    parameters, norms = alone()
    for found, mine_, kept in ranks(2)(train, resumes, options):
        torch.testing.assert_close(found, parameters, rtol=1e-4, atol=1e-5)
        assert mine_ == pytest.approx(norms, rel=1e-4)
        assert max(kept) == 9  # of 15, with one row to fill up: 3 of 6 rows


def in_two_steps() -> list[float]:
    layer = nn.Linear(4, 4, bias=False).to("xla")
    with torch.no_grad():
        layer.weight.fill_(1.0)
    optimizer = ZeroRedundancyOptimizer(layer.parameters(), torch.optim.SGD, grad_clipping=False, lr=1.0)
    layer(torch.full((1, 4), float(xm.get_ordinal()), device="xla")).sum().backward()
    optimizer.step(
        sharding_scheme=[{"scale_factor": 1.0, "sharding_group": [[0, 1]], "group_size": 2}], closure=lambda: 5.0
    )
    return layer.weight.flatten().tolist()


def test_a_scheme_and_a_closure(ranks):
    assert ranks(2)(in_two_steps) == [[0.5] * 16] * 2


def test_one_rank_and_refusals():
    layer = nn.Linear(2, 3).to("xla")
    optimizer = ZeroRedundancyOptimizer(layer.parameters(), torch.optim.SGD, lr=0.1, use_grad_acc_hook=True)
    assert optimizer.get_shape_info() == {0: (3, 2), 1: (3,)}
    layer(torch.ones(1, 2, device="xla")).sum().backward()
    assert layer.weight.grad is None
    optimizer.remove_hooks()
    layer(torch.ones(1, 2, device="xla")).sum().backward()
    assert layer.weight.grad is not None
    with pytest.raises(RuntimeError, match="shared out already"):
        optimizer.sharding_groups = [[0]]
    with pytest.raises(ValueError, match="expected parameters on xla, got one on cpu"):
        ZeroRedundancyOptimizer(nn.Linear(2, 2).parameters(), torch.optim.SGD, lr=0.1)
    with pytest.raises(ValueError, match="this rank, 0, is in none of"):
        ZeroRedundancyOptimizer(layer.parameters(), torch.optim.SGD, lr=0.1, sharding_groups=[[1]])
    lazy = ZeroRedundancyOptimizer(layer.parameters(), torch.optim.SGD, lr=0.1, lazy_init=True)
    with pytest.raises(RuntimeError, match=r"call init_zero\(\) first"):
        lazy.step()


def put_together() -> tuple[list[float], list[float], list[float]]:
    torch.manual_seed(0)
    layer, idle = nn.Linear(3, 3, bias=False).to("xla"), nn.Parameter(torch.ones(2, device="xla"))
    optimizer = ZeroRedundancyOptimizer([*layer.parameters(), idle], torch.optim.SGD, lr=1.0)
    layer(torch.ones(1, 3, device="xla")).sum().backward()
    with torch.no_grad():
        for group in optimizer.base_optimizer.param_groups:
            for shard in group["params"]:
                shard.fill_(float(xm.get_ordinal() + 2))
    before = layer.weight.detach().cpu()
    optimizer.allgather_weights_and_update_full_parameter()
    first = layer.weight.flatten().tolist()
    with torch.no_grad():
        layer.weight.copy_(before)
    scheme = [{"scale_factor": 1.0, "sharding_group": [[0, 1]], "group_size": 2}]
    optimizer.allgather_weights_and_update_full_parameter(scheme)
    return first, layer.weight.flatten().tolist(), idle.tolist()


def test_parts_are_put_together(ranks):
    for first, second, idle in ranks(2)(put_together):
        assert first == second == [2.0] * 6 + [3.0] * 3  # two rows of the first rank, and one of the second
        assert idle == [1.0, 1.0]  # it has no gradient
