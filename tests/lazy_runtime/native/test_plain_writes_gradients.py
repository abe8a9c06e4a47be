"""Elementwise operators in place that autograd follows."""

from __future__ import annotations

import sys

import pytest
import torch
from torch.nn import functional as F

WRITES = {
    "relu6": lambda x, y: F.relu6(x, inplace=True),
    "hardtanh": lambda x, y: F.hardtanh(x, -0.3, 0.4, inplace=True),
    "hardswish": lambda x, y: F.hardswish(x, inplace=True),
    "hardsigmoid": lambda x, y: F.hardsigmoid(x, inplace=True),
    "silu": lambda x, y: F.silu(x, inplace=True),
    "mish": lambda x, y: F.mish(x, inplace=True),
    "gelu": lambda x, y: torch.ops.aten.gelu_(x, approximate="tanh"),
    "clamp": lambda x, y: x.clamp_(-0.2, 0.3),
    "clamp below": lambda x, y: x.clamp_(min=0.1),
    "clamp to tensors": lambda x, y: x.clamp_(y - 0.5, y + 0.5),
    # which keep their results, or go another way
    "sigmoid": lambda x, y: x.sigmoid_(),
    "elu": lambda x, y: F.elu(x, inplace=True),
    "mul": lambda x, y: x.mul_(y),
}
PLACES = {
    "a result": lambda x: x,
    "a view": lambda x: x[1],
    "a view of a view": lambda x: x.t()[1:].view(2, 4)[:, ::2],
    "a part of it twice": lambda x: (x[0].mul_(2), x[0])[1],
}


def _trained(write, place, device, dtype):
    torch.manual_seed(0)
    leaf = torch.randn(4, 3, dtype=dtype)
    other = torch.randn((), dtype=dtype)
    leaf, other = (each.to(device).requires_grad_() for each in (leaf, other))
    seen = []
    x = leaf * 1.5
    x.register_hook(lambda gradient: seen.append(gradient.cpu()))
    x.retain_grad()
    target = place(x)
    version = x._version
    result = write(target, other)
    assert result is target
    assert x._version == version + 1
    name = "" if target._is_view() else type(target.grad_fn).__name__  # the history of a view goes by its root here
    # torch has no second derivative of hardsigmoid, and in float32 those of gelu and mish round away three digits
    is_twice = write is not WRITES["hardsigmoid"] and dtype is torch.float64
    (first, second) = torch.autograd.grad((x * x).sum(), (leaf, other), create_graph=is_twice, allow_unused=True)
    twice = torch.autograd.grad(first.square().sum(), leaf, allow_unused=True)[0] if is_twice else None
    found = [x, target, first, second, twice, x.grad, *seen]
    return name, [None if each is None else each.detach().cpu() for each in found]


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_as_on_the_cpu(write, place, dtype):
    ours, wanted = (_trained(write, place, device, dtype) for device in ("xla", "cpu"))
    assert ours[0] == wanted[0]
    torch.testing.assert_close(ours[1], wanted[1])


@pytest.mark.parametrize("write", [WRITES["relu6"], WRITES["clamp to tensors"]])
def test_only_the_other_operand_has_a_gradient(write):
    def gradient(device):
        x, other = torch.linspace(-1, 1, 6, device=device), torch.tensor(0.1, device=device, requires_grad=True)
        y = write(x, other)
        assert y.requires_grad is (write is WRITES["clamp to tensors"])
        return torch.autograd.grad(y.sum(), other)[0].cpu() if y.requires_grad else y.cpu()

    torch.testing.assert_close(gradient("xla"), gradient("cpu"))


@pytest.mark.parametrize(
    "write",
    [
        lambda x: F.relu6(x, inplace=True),  # a leaf
        lambda x: F.relu6((x * 2).expand(3, 2, 2)[0].expand(2, 2, 2), inplace=True),
        lambda x: F.relu6((x * 2).unbind()[0], inplace=True),
        lambda x: (lambda y: (y.square(), F.relu6(y, inplace=True))[0])(x * 2).sum().backward(),  # needed as it was
    ],
)
def test_what_is_wrong_is_said_as_on_the_cpu(write):
    raised = []
    for device in ("cpu", "xla"):
        with pytest.raises(RuntimeError) as found:
            write(torch.ones(2, 2, device=device, requires_grad=True))
        raised.append(str(found.value).replace("torch.FloatTensor", "").replace("torch.xla.FloatTensor", ""))
    assert raised[0].split("[")[0] == raised[1].split("[")[0]


def test_no_meta_kernel_in_python_runs(in_python):
    in_python()  # where the profile sees that operators are recorded
    parameter = torch.randn(3, 3, device="xla", requires_grad=True)
    files = set()

    def profile(frame, event, argument):
        files.add(frame.f_code.co_filename)

    for number in range(2):
        x = parameter * 2
        if number == 1:  # not what happens once
            sys.setprofile(profile)
        try:
            F.hardswish(F.relu6(x, inplace=True), inplace=True).clamp_(0.1, 0.5)
        finally:
            sys.setprofile(None)
    assert any("dispatch.py" in file for file in files)
    assert not [file for file in files if "_meta_registrations" in file or "_refs" in file or "_decomp" in file]
