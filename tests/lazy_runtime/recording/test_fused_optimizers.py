"""`fused=True`: the same numbers as torch's fused kernels on the CPU, one operator for all parameters of a group."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lazy_runtime
from lazy_runtime.common import metrics

CASES = {
    "Adam": (torch.optim.Adam, {"lr": 1e-2}),
    "Adam, decay": (torch.optim.Adam, {"weight_decay": 0.1, "eps": 1e-3, "maximize": True}),
    "AdamW, amsgrad": (torch.optim.AdamW, {"lr": 1e-2, "amsgrad": True, "betas": (0.5, 0.7)}),
    "AdamW, lr is a tensor": (torch.optim.AdamW, {"lr": torch.tensor(1e-2), "weight_decay": 0.1}),
    "SGD": (torch.optim.SGD, {"lr": 0.1}),
    "SGD, momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01}),
    "SGD, nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 0.1, "lr_decay": 0.01, "weight_decay": 0.1, "eps": 1e-3}),
}
STEPS = 4


def train(device: str, name: str, dtype=torch.float64, compiled: bool = False, fused: bool = True):
    kind, options = CASES[name]
    options = {key: x.clone() if isinstance(x, torch.Tensor) else x for key, x in options.items()}
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).to(dtype)
    inputs = torch.randn(5, 4).to(device, dtype)
    optimizer = kind(model.to(device).parameters(), fused=fused, **options)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = torch.compile(step, backend="openxla") if compiled else step
    losses = [run() for _ in range(STEPS)]
    state = {
        f"{number} {key}": value.cpu()
        for number, each in enumerate(optimizer.state.values())
        for key, value in each.items()
        if isinstance(value, torch.Tensor)
    }
    return torch.stack(losses).cpu(), [p.detach().cpu() for p in model.parameters()], state


@pytest.mark.parametrize("name", CASES)
def test_as_on_the_cpu(name):
    torch.testing.assert_close(train("xla", name), train("cpu", name), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", ["AdamW, amsgrad", "SGD, nesterov"])
@pytest.mark.filterwarnings(  # torch's own, while Dynamo traces
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning",
    "ignore:`torch.jit.script_method` is deprecated",
)
def test_within_a_compiled_step(name):
    torch.testing.assert_close(train("xla", name, compiled=True), train("cpu", name), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", ["Adam, decay", "SGD, momentum", "Adagrad"])
def test_16_bits_compute_in_32(name):
    # the CPU's own gradients differ in the last of bfloat16's 8 bits
    torch.testing.assert_close(
        train("xla", name, torch.bfloat16), train("cpu", name, torch.bfloat16), rtol=2**-6, atol=2**-6
    )


def test_one_operator_and_no_recompile():
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(5))).to("xla")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    x = torch.randn(2, 4).to("xla")
    for number in range(6):
        if number == 3:
            lazy_runtime.sync()
            metrics.clear()
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        schedule.step()
        lazy_runtime.sync()
    assert metrics.value("xla::_fused_adamw") == 3
    assert metrics.value("UncachedCompile") == 0
    assert metrics.value("ExecuteComputation") == 3


@pytest.mark.parametrize("name", ["Adam", "AdamW, amsgrad", "SGD, momentum", "Adagrad"])
def test_gradient_scaling_reads_nothing(name):
    kind, options = CASES[name]

    def run(device: str):
        torch.manual_seed(0)
        model = nn.Linear(4, 3).to(device)
        optimizer = kind(model.parameters(), fused=True, **options)
        scaler = torch.amp.GradScaler(device, init_scale=4.0, growth_interval=2)
        inputs = [torch.randn(2, 4), torch.full((2, 4), torch.inf), torch.randn(2, 4)]  # the second step is skipped
        for x in inputs:
            optimizer.zero_grad()
            scaler.scale(model(x.to(device)).square().mean()).backward()
            read = metrics.value("TransferFromDevice")
            scaler.step(optimizer)
            scaler.update()
            # torch 2.11's fused Adagrad leaves the scale to the scaler, which asks whether it is to call the step
            reads = not getattr(optimizer, "_step_supports_amp_scaling", False)
            assert reads or metrics.value("TransferFromDevice") == read
        gradients = [p.grad.cpu() for p in model.parameters()]
        return scaler.get_scale(), [p.detach().cpu() for p in model.parameters()], gradients

    torch.testing.assert_close(run("xla"), run("cpu"))


def test_torchs_own_errors():
    complex_parameter = nn.Parameter(torch.ones(2, dtype=torch.complex64, device="xla"))
    optimizer = torch.optim.Adam([complex_parameter], fused=True)
    complex_parameter.grad = torch.ones_like(complex_parameter)
    with pytest.raises(RuntimeError, match="floating point"):
        optimizer.step()
