"""The work along each axis."""

from __future__ import annotations

import pytest
import torch

from benchmarks.measurements.growth_axes import AXES


@pytest.mark.parametrize("name", AXES)
def test_sizes_increase(name):
    for sizes in (AXES[name].sizes, AXES[name].quick):
        assert list(sizes) == sorted(set(sizes))
        assert len(sizes) >= 3


@pytest.mark.parametrize("name", AXES)
def test_each_work_gives_the_same_on_the_device(name):
    work = AXES[name].make(AXES[name].quick[-1])
    with torch.no_grad():
        expected = [work.function(*arguments) for arguments in work.calls]
        moved = work.function.to("xla") if isinstance(work.function, torch.nn.Module) else work.function
        found = [moved(*(tensor.to("xla") for tensor in arguments)).cpu() for arguments in work.calls]
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_writes_overlap():
    work = AXES["writes"].make(3)
    assert work.function(*work.calls[0])[:5].tolist() == [1, 2, 2, 1, 0]


def test_each_call_has_a_shape_of_its_own():
    assert len({arguments[0].shape for arguments in AXES["shapes"].make(64).calls}) == 64
