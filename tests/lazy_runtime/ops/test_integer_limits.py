"""Operators of two integers at both ends of their types; `tests.operators` has the other operators (`limits`)."""

import itertools

import pytest
import torch

from tests.operators.limits import numbers

#: what is left out ends a process on the CPU: the least number divided by -1
_DIVIDE = ("floor_divide", "remainder", "fmod")
NAMES = ("gcd", "lcm", *_DIVIDE, "bitwise_left_shift", "bitwise_right_shift", "mul", "maximum")


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8], ids=str)
def test_both_ends(dtype):
    ends, least = numbers(dtype), torch.iinfo(dtype).min
    for name in NAMES:
        pairs = list(itertools.product(ends, ends))
        if name in _DIVIDE:
            pairs = [(x, y) for x, y in pairs if y != 0 and (x, y) != (least, -1)]
        if name == "lcm":  # which divides the least number by a divisor that may be -1
            pairs = [(x, y) for x, y in pairs if least == 0 or least not in (x, y) or x == y]
        x, y = (torch.tensor(column, dtype=dtype) for column in zip(*pairs, strict=True))
        function = getattr(torch, name)
        assert torch.equal(function(x.to("xla"), y.to("xla")).cpu(), function(x, y)), name


@pytest.mark.parametrize("name", ["floor_divide", "remainder", "fmod", "lcm", "gcd"])
def test_what_ends_a_process_on_the_cpu(name):
    least = torch.tensor([torch.iinfo(torch.int64).min], device="xla")
    result = getattr(torch, name)(least, torch.tensor([-1], device="xla")).item()
    assert result == {"remainder": 0, "fmod": 0, "gcd": 1}.get(name, torch.iinfo(torch.int64).min)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.uint8], ids=str)
def test_thresholds_that_are_no_integers(dtype):
    x = torch.tensor(numbers(dtype), dtype=dtype)
    for threshold, value in ((0.15, 9), (0.9, 3.7), (2, 1)):
        expected = torch.nn.functional.threshold(x, threshold, value)
        assert torch.equal(torch.nn.functional.threshold(x.to("xla"), threshold, value).cpu(), expected)
