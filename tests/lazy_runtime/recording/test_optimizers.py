"""Every torch.optim optimizer gives the parameters that it gives on the CPU."""

from __future__ import annotations

import inspect

import pytest
import torch

import lazy_runtime
from lazy_runtime.common import metrics

OPTIMIZERS = {
    name: value
    for name, value in vars(torch.optim).items()
    if inspect.isclass(value) and issubclass(value, torch.optim.Optimizer) and value is not torch.optim.Optimizer
}
del OPTIMIZERS["SparseAdam"]  # for sparse gradients only, see test_sparse
# torch's own lists of devices (torch/optim/*.py) leave xla out of these
CAPTURABLE = ["Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop"]
FOREACH_CAPTURABLE = ["RMSprop", "Rprop"]

CASES = [(name, {}) for name in OPTIMIZERS]
CASES += [(n, {"foreach": True}) for n, c in OPTIMIZERS.items() if "foreach" in inspect.signature(c).parameters]
CASES += [(name, {"capturable": True}) for name in CAPTURABLE]
CASES += [(name, {"capturable": True, "foreach": True}) for name in FOREACH_CAPTURABLE]
CASES += [
    ("SGD", {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True}),
    ("Adam", {"amsgrad": True, "maximize": True}),
    ("RMSprop", {"momentum": 0.9, "centered": True}),
]


def train(device: str, name: str, options: dict, steps: int = 3) -> list[torch.Tensor]:
    torch.manual_seed(0)
    bias = name != "Muon"  # takes matrices only
    model = torch.nn.Sequential(torch.nn.Linear(5, 4, bias), torch.nn.Tanh(), torch.nn.Linear(4, 3, bias)).double()
    x = torch.randn(8, 5, dtype=torch.float64).to(device)
    model = model.to(device)
    optimizer = OPTIMIZERS[name](model.parameters(), **options)

    def closure():
        optimizer.zero_grad()
        loss = (model(x) ** 2).sum()
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)
        lazy_runtime.sync()
    return [parameter.detach().cpu() for parameter in model.parameters()]


def label(value: str | dict) -> str:
    return value if isinstance(value, str) else "-".join(value) or "default"


@pytest.mark.parametrize(("name", "options"), CASES, ids=label)
def test_same_parameters(name, options):
    on_cpu = {key: value for key, value in options.items() if key != "capturable"}
    # Muon orthogonalises in bfloat16; a capturable step works out its powers on the device
    tolerance = 2e-3 if name == "Muon" else 1e-6 if "capturable" in options else 1e-7
    for ours, torchs in zip(train("xla", name, options), train("cpu", name, on_cpu), strict=True):
        torch.testing.assert_close(ours, torchs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_a_changing_learning_rate_and_step_count_do_not_recompile(name):
    layer = torch.nn.Linear(3, 2).to("xla")
    optimizer = OPTIMIZERS[name](layer.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    x = torch.ones(4, 3, device="xla")
    compiles = []
    for _ in range(6):
        optimizer.zero_grad()
        layer(x).sum().backward()
        optimizer.step()
        lazy_runtime.sync()
        schedule.step()
        compiles.append(metrics.value("UncachedCompile"))
    assert compiles[1:] == [compiles[1]] * 5
    assert metrics.value("CachedCompile") >= 4
    assert metrics.value("ExecuteComputation") <= 7  # one each, and what precedes the first


def test_state_dict_of_an_optimizer_goes_both_ways():
    def one(device):
        layer = torch.nn.Linear(3, 2).to(device)
        return layer, torch.optim.Adam(layer.parameters())

    layer, optimizer = one("xla")
    layer(torch.ones(1, 3, device="xla")).sum().backward()
    optimizer.step()
    layer2, optimizer2 = one("cpu")
    optimizer2.load_state_dict(optimizer.state_dict())
    moment = optimizer2.state[layer2.weight]["exp_avg"]
    assert moment.device.type == "cpu"
    torch.testing.assert_close(moment, optimizer.state[layer.weight]["exp_avg"].cpu())
    optimizer.load_state_dict(optimizer2.state_dict())
    assert optimizer.state[layer.weight]["exp_avg"].device.type == "xla"
