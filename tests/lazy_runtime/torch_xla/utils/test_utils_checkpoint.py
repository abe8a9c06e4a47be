"""Activation checkpointing."""

from __future__ import annotations

import pytest
import torch

import lazy_runtime
from lazy_runtime.common import metrics
from lazy_runtime.compilation import compiler
from lazy_runtime.torch_xla.utils.checkpoint import (
    CheckpointFunction,
    CheckpointStatus,
    checkpoint,
    chkpt_status,
    get_device_states,
    set_device_states,
)


def block(x, weight):
    return torch.tanh(torch.exp(torch.sin(x @ weight)))


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_gradients(use_reentrant):
    torch.manual_seed(0)
    values = torch.randn(4, 4).tolist(), torch.randn(4, 4).tolist()
    gradients = []
    for device in ("cpu", "xla"):
        x, weight = (torch.tensor(value, device=device, requires_grad=True) for value in values)
        y = block(x, weight) if device == "cpu" else checkpoint(block, x, weight, use_reentrant=use_reentrant)
        y.square().sum().backward()
        gradients.append((x.grad.cpu(), weight.grad.cpu()))
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_the_compiler_computes_twice(use_reentrant):
    """The optimized program has the sine of the forward pass, and one of the backward pass."""

    def sines(run):
        x = torch.randn(4, 4, device="xla", requires_grad=True)
        weight = torch.randn(4, 4, device="xla")
        lazy_runtime.sync()
        compiler.clear()
        loss = run(x, weight).sum()
        loss.backward()
        lazy_runtime.sync()
        (program,) = compiler._executables.values()
        assert loss.isfinite()  # it was wanted
        return program.compiled.as_text().count(" sine(")

    assert sines(block) == 1
    found = sines(lambda *args: checkpoint(block, *args, use_reentrant=use_reentrant))
    assert found == 2


def test_dropout_is_the_same_again():
    x = torch.ones(1000, device="xla", requires_grad=True)
    y = checkpoint(lambda x: torch.nn.functional.dropout(x, 0.5) * 3, x)
    y.sum().backward()
    assert torch.equal(y.detach(), x.grad)
    assert metrics.value("xla::optimization_barrier") == 0


def test_the_second_computation_says_so():
    seen = []

    def function(x):
        seen.append(chkpt_status.in_chkpt_bwd)
        return x.sin()

    x = torch.ones(2, device="xla", requires_grad=True)
    checkpoint(function, x, use_reentrant=False).sum().backward()
    assert seen == [False, True]
    assert not chkpt_status.in_chkpt_bwd


def test_states_of_devices():
    x, y = torch.ones(2, device="xla"), torch.ones(2)
    devices, states = get_device_states(x, y, 3, x)
    assert devices == [x.device]
    first = torch.rand(3, device="xla").cpu()
    set_device_states(devices, states)
    assert torch.equal(torch.rand(3, device="xla").cpu(), first)
    assert get_device_states(y) == ([], [])


def test_the_reentrant_function_itself():
    assert type(chkpt_status) is CheckpointStatus
    assert not CheckpointStatus().in_chkpt_bwd
    seen = []

    def function(x, factor):
        seen.append((chkpt_status.in_chkpt_bwd, torch.is_grad_enabled()))
        return torch.exp(torch.sin(x)) * factor

    x = torch.randn(4, 4, device="xla", requires_grad=True)
    lazy_runtime.sync()
    compiler.clear()
    y = CheckpointFunction.apply(function, True, x, 3.0)
    y.sum().backward()
    lazy_runtime.sync()
    assert seen == [(False, False), (True, True)]
    assert not chkpt_status.in_chkpt_bwd
    (program,) = compiler._executables.values()
    assert program.compiled.as_text().count(" sine(") == 2  # that of the forward pass, and one of the backward pass
    plain = x.detach().cpu().requires_grad_()
    (torch.exp(torch.sin(plain)) * 3.0).sum().backward()
    torch.testing.assert_close(x.grad.cpu(), plain.grad)
