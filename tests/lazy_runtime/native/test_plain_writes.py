"""The operators of optimizers in place, past functionalization's run on meta tensors where nothing can be wrong."""

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
INTEGERS = ("add", "add number", "sub", "mul", "mul row", "to itself", "a view", "through a view of a view")


def written(name: str, dtype: torch.dtype, device: str):
    x = torch.arange(6).reshape(2, 3).to(dtype).to(device)
    seen = x[1]
    result = WRITES[name](x, (torch.arange(6).reshape(2, 3) + 1).to(dtype).to(device))
    return x.cpu(), seen.cpu(), (x._version, seen._version, x.stride(), result.cpu())


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, dtype) for name in WRITES for dtype in (torch.float32, torch.float16, torch.complex64)]
    + [(name, torch.int64) for name in INTEGERS],
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


def test_no_meta_kernel_in_python_runs():
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
        finally:
            sys.setprofile(None)
    assert any("dispatch.py" in file for file in files)
    assert not [file for file in files if "_meta_registrations" in file or "_refs" in file]
