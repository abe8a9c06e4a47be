"""`_grouped_mm` against the CPU, where a product belongs to a group."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from lazy_runtime.common import metrics
from lazy_runtime.ops.linalg import grouped_mm

#: The groups' ends: all of them, with one that is empty, and short of the end.
ENDS = {"all": [4, 8, 16], "an empty one": [4, 4, 16], "not all": [3, 5, 9]}


def operands(form: str, size: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """Sixteen rows, columns or terms in three groups."""
    torch.manual_seed(0)
    shapes = {
        "rows": ((16, 8), (3, 8, size)),
        "columns": ((3, size, 8), (8, 16)),
        "sums": ((size, 16), (16, 8)),
    }
    return tuple(torch.randn(shape) for shape in shapes[form])  # type: ignore[return-value]


def of_groups(result: torch.Tensor, form: str, end: int) -> torch.Tensor:
    """What torch computes of a result."""
    return result[:end] if form == "rows" else result[:, :end] if form == "columns" else result


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("form", ["rows", "columns", "sums"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_forward_and_backward(form, ends, dtype):
    offs = torch.tensor(ENDS[ends], dtype=torch.int32)
    end = int(offs[-1])
    found, wanted = [], []
    for device, results in (("xla", found), ("cpu", wanted)):
        x, y = (each.to(device, dtype).requires_grad_() for each in operands(form))
        made = torch._grouped_mm(x, y, offs=offs.to(device))
        results.append((made.shape, made.stride(), made.dtype))
        used = of_groups(made, form, end)
        (used * torch.arange(used.numel(), device=device, dtype=dtype).view(used.shape) / 100).sum().backward()
        # terms and factors that belong to no group have a gradient that torch leaves undefined
        gradients = [x.grad[:end], y.grad]
        if form != "rows":
            gradients = [
                x.grad[..., :end] if form == "sums" else x.grad,
                y.grad[..., :end] if form == "columns" else y.grad[:end],
            ]
        results += [each.detach().cpu() for each in (used, *gradients)]
    assert found[0] == wanted[0]
    for got, expected in zip(found[1:], wanted[1:], strict=True):
        torch.testing.assert_close(got, expected)


def test_no_fallback():
    before = metrics.value("aten::_grouped_mm")
    x, y = operands("rows")
    torch._grouped_mm(x.to("xla"), y.to("xla"), offs=torch.tensor([4, 8, 16], dtype=torch.int32, device="xla")).cpu()
    assert metrics.value("aten::_grouped_mm") == before


@pytest.mark.parametrize("size", [4, 6, 7])
def test_matrices_that_lie_transposed(size):
    """The kernels want aligned rows of what they are given, whichever dimension that is."""
    x, _ = operands("rows")
    y = torch.randn(3, size, 8).transpose(1, 2)
    offs = torch.tensor([4, 8, 16], dtype=torch.int32)
    wanted = torch._grouped_mm(x, y, offs=offs)
    found = torch._grouped_mm(x.to("xla"), y.to("xla"), offs=offs.to("xla"))
    assert found.stride() == wanted.stride()
    torch.testing.assert_close(found.cpu(), wanted)


def test_a_batch():
    x, y = torch.randn(3, 4, 8), torch.randn(3, 8, 12)
    torch.testing.assert_close(torch._grouped_mm(x.to("xla"), y.to("xla")).cpu(), torch._grouped_mm(x, y))


def test_errors_are_torchs():
    x, y = operands("rows")
    offs = torch.tensor([4, 8, 16], dtype=torch.int32)
    for arguments in ((x, y[:, :4], offs), (x, y, offs[:2]), (x, y, None), (x.double(), y.double(), offs)):
        with pytest.raises(RuntimeError) as wanted:
            torch._grouped_mm(*arguments[:2], offs=arguments[2])
        with pytest.raises(RuntimeError) as found:
            torch._grouped_mm(
                *(each.to("xla") for each in arguments[:2]),
                offs=None if arguments[2] is None else offs.to("xla")[: len(arguments[2])],
            )
        assert str(found.value).splitlines()[0] == str(wanted.value).splitlines()[0]


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("form", ["rows", "columns", "sums"])
def test_without_torchs_kernel(form, ends):
    """As on other platforms than the CPU."""
    x, y = operands(form)
    offs = torch.tensor(ENDS[ends], dtype=torch.int32)
    wanted = of_groups(torch._grouped_mm(x, y, offs=offs), form, int(offs[-1]))
    made = grouped_mm._by_xla(jnp.asarray(x.numpy()), jnp.asarray(y.numpy()), jnp.asarray(offs.numpy()), jnp.float32)
    torch.testing.assert_close(of_groups(torch.from_numpy(np.array(made)), form, int(offs[-1])), wanted)
