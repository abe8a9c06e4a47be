"""Elementwise operators in place, past functionalization's run on meta tensors where nothing can be wrong."""

from __future__ import annotations

import sys

import pytest
import torch

WRITES = {
    "add": lambda x, y: x.add_(y, alpha=3),
    "add number": lambda x, y: x.add_(2),
    "sub": lambda x, y: x.sub_(y),
    "mul": lambda x, y: x.mul_(y),
    "mul row": lambda x, y: x.mul_(y[0]),
    "to itself": lambda x, y: x.add_(x),
    "a view": lambda x, y: x.t()[1:].mul_(y.t()[1:]),
    "through a view of a view": lambda x, y: x[:, 1].view(-1)[:1].sub_(y[1, 2]),
    "div": lambda x, y: x.div_(y),
    "lerp": lambda x, y: x.lerp_(y, 0.25),
    "addcmul": lambda x, y: x.addcmul_(y, y + 1, value=2),
    "addcdiv": lambda x, y: x.addcdiv_(y, y + 1, value=-0.5),
}
#: what only real numbers have
OF_REALS = {
    "clamp": lambda x, y: x.clamp_(1, 3),
    "clamp to none": lambda x, y: x.clamp_(max=2),
    "clamp to tensors": lambda x, y: x.clamp_(y - 2, y),
    "remainder": lambda x, y: x.remainder_(y),
    "neg": lambda x, y: x[0].neg_(),
}
OF_FLOATS = {
    "clamp to fractions": lambda x, y: x.clamp_(0.5, 2.5),
    "relu6": lambda x, y: torch.nn.functional.relu6(x, inplace=True),
    "gelu": lambda x, y: torch.ops.aten.gelu_(x, approximate="tanh"),
    "div of a mode": lambda x, y: x.div_(y, rounding_mode="floor"),
    "round": lambda x, y: x.div_(3).round_(decimals=1),
    "pow": lambda x, y: x.t().pow_(2).pow_(y.t()),
    "threshold": lambda x, y: torch.nn.functional.threshold_(x, 1, 7),
    "xlogy": lambda x, y: x.xlogy_(y),
    "selu": lambda x, y: torch.selu_(x),
} | {
    name: lambda x, y, name=name: getattr(torch.ops.aten, name)(x.sub_(2).div_(4))
    for name in ("elu_", "hardsigmoid_", "hardswish_", "leaky_relu_", "mish_", "sigmoid_", "silu_", "sinc_", "tanh_")
}
INTEGERS = ("add", "add number", "sub", "mul", "mul row", "to itself", "a view", "through a view of a view")


def written(name: str, dtype: torch.dtype, device: str):
    x = torch.arange(6).reshape(2, 3).to(dtype).to(device)
    seen = x[1]
    result = (WRITES | OF_REALS | OF_FLOATS)[name](x, (torch.arange(6).reshape(2, 3) + 1).to(dtype).to(device))
    return x.cpu(), seen.cpu(), (x._version, seen._version, x.stride(), result.cpu())


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, dtype) for name in WRITES for dtype in (torch.float32, torch.float16, torch.complex64)]
    + [(name, torch.int64) for name in (*INTEGERS, *OF_REALS)]
    + [(name, dtype) for name in OF_REALS | OF_FLOATS for dtype in (torch.float32, torch.float16)],
)
def test_as_on_the_cpu(name, dtype):
    torch.testing.assert_close(written(name, dtype, "xla"), written(name, dtype, "cpu"))


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.add_(torch.ones(3, 2, device=x.device)),
        lambda x: x.mul_(1j),
        lambda x: x.add_(1, alpha=True),
        lambda x: x.int().div_(2),
        lambda x: x.int().add_(1.5),
        lambda x: x.bool().sub_(x.bool()),
        lambda x: x.int().sigmoid_(),
        lambda x: x.int().clamp_(0.5),
        lambda x: x.bool().neg_(),
        lambda x: x.clamp_(),
        lambda x: x.clamp_(torch.zeros(3, 2, device=x.device)),
        lambda x: torch.nn.functional.hardtanh_(x.to(torch.complex64)),
        lambda x: torch.ops.aten.gelu_(x, approximate="none of these"),
        lambda x: x.pow_(1j),
        lambda x: x.expand(2, 2).add_(1),
        lambda x: x.clone().requires_grad_().add_(1),
    ],
)
def test_what_is_wrong_is_said_as_on_the_cpu(write):
    raised = []
    for device in ("cpu", "xla"):
        with pytest.raises(RuntimeError) as found:
            write(torch.ones(2, device=device))
        raised.append(str(found.value))
    assert raised[0] == raised[1]


def test_no_meta_kernel_in_python_runs(in_python):
    in_python()  # where the profile sees that operators are recorded
    parameters = [torch.ones(3, 3, device="xla") for _ in range(2)]
    gradients = [torch.ones(3, 3, device="xla") for _ in range(2)]
    files = set()

    def profile(frame, event, argument):
        files.add(frame.f_code.co_filename)

    for number in range(2):
        if number == 1:  # not what happens once
            sys.setprofile(profile)
        try:
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.mul_(0.5).lerp_(gradient, 0.1).addcmul_(gradient, gradient, value=2).add_(1)
                parameter.addcdiv_(gradient, gradient)
                torch.nn.functional.relu6(parameter.sigmoid_(), inplace=True).clamp_(min=0.1).sqrt_()
        finally:
            sys.setprofile(None)
    assert any("dispatch.py" in file for file in files)
    assert not [file for file in files if "_meta_registrations" in file or "_refs" in file]
