"""`set_` and `as_strided` of whatever arguments: what the CPU gives, its error, or an error; never a crash."""

from __future__ import annotations

import random
import subprocess
import sys
from typing import Any

import pytest
import torch

SIZES = [0, 1, 2, 3, 6, -1, 1000, 2**40]
STRIDES = {
    "none": lambda size: None,
    "empty": lambda size: (),
    "small": lambda size: tuple(1 + place % 2 for place, _ in enumerate(size)),
    "short": lambda size: (1,) * (len(size) - 1),
    "long": lambda size: (1,) * (len(size) + 1),
    "negative": lambda size: (-1,) * len(size),
    "zero": lambda size: (0,) * len(size),
    "huge": lambda size: (2**62,) * len(size),
}
OPERATORS = {
    "set_storage": lambda x, y, place: y.set_(x.untyped_storage(), *place),
    "set_tensor": lambda x, y, place: y.set_(x, *place),
    "as_strided": lambda x, y, place: x.as_strided(*place[1:], place[0]),
    "as_strided_": lambda x, y, place: x.as_strided_(*place[1:], place[0]),
}


def outcome(device: str, seed: int) -> Any:
    """What a call drawn at random gives: its look and elements, or its error."""
    draw = random.Random(seed)
    name = draw.choice(list(OPERATORS))
    x = torch.arange(float(draw.choice([0, 1, 6, 12]))).to(device)
    x = draw.choice([lambda: x, lambda: x[2:], lambda: x[::2], lambda: x.view(-1, 1).t()])()
    y = torch.tensor([7.0, 8.0], dtype=draw.choice([torch.float32, torch.float32, torch.float64])).to(device)
    size = tuple(draw.choice(SIZES[:4] if draw.random() < 0.7 else SIZES) for _ in range(draw.choice([0, 1, 1, 2, 3])))
    stride = STRIDES[draw.choice(["none", "small", *STRIDES])](size)
    offset = draw.choice([0, 0, 0, 1, 2, 5, -1, 100, -(2**62), 2**62])
    if stride is None:
        stride = () if name.startswith("as_strided") else None
    place = (offset, size) if stride is None else (offset, size, stride)
    try:
        result = OPERATORS[name](x, y, place)
        if not all(0 <= each <= 10_000 for each in (result.numel(), *result.shape)):  # the CPU takes -1 beside a 0
            return "too large for a list"
        return result.dtype, result.shape, result.stride(), result.storage_offset(), result.tolist()
    except (RuntimeError, NotImplementedError) as error:
        return str(error)


def compare(count: int) -> int:
    """Compares so many calls, and gives how many of them gave a tensor."""
    tensors = 0
    for seed in range(count):
        expected, found = outcome("cpu", seed), outcome("xla", seed)
        if isinstance(found, str):  # the CPU makes a memory larger, and reads what was there; -1 is a size of none
            continue
        tensors += 1
        if isinstance(expected, str) and 0 in found[1]:  # what shows no memory may begin anywhere
            continue
        assert str(found) == str(expected), (seed, expected, found)
    return tensors


def test_any_arguments():
    """In a process of its own: what is forgotten here has ended in signal 11."""
    program = "from tests.lazy_runtime.dispatcher import test_memory; print(test_memory.compare(400))"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert int(ended.stdout) > 60


def test_sizes_without_strides_are_contiguous():
    memory = torch.arange(6.0, device="xla")
    x = torch.tensor([], device="xla").set_(memory.untyped_storage(), 0, (2, 3))
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]
    x.mul_(2)
    assert memory.tolist() == [0, 2, 4, 6, 8, 10]


def test_as_many_strides_as_sizes():
    memory = torch.arange(6.0, device="xla")
    for function, message in (
        (lambda: torch.tensor([], device="xla").set_(memory.untyped_storage(), 0, (2,), (1, 1)), "unequal size length"),
        (lambda: torch.tensor([], device="xla").set_(memory, 0, (2, 3), (1,)), "unequal size length"),
        (lambda: memory.as_strided((2, 3), (1,)), "mismatch in length of strides and shape"),
    ):
        with pytest.raises(RuntimeError, match=message):
            function()
