"""Loops whose tensors grow."""

from __future__ import annotations

import warnings

import pytest
import torch

import lazy_runtime
from lazy_runtime.common import notices


def turn(x, operators):
    for _ in range(operators):
        x = (x * 1.5).tanh()
    lazy_runtime.sync()


def sizes_of(sizes, operators=60):
    for size in sizes:
        x = torch.ones(2, size, device="xla")
        lazy_runtime.sync()
        turn(x, operators)


@pytest.fixture(autouse=True)
def untold(monkeypatch):
    monkeypatch.setattr(notices, "_told", set())
    lazy_runtime.debug.compiling.clear()


def test_a_loop_that_grows_is_told_of_once():
    with pytest.warns(RuntimeWarning, match=r"9 times in a row, .* longer by 3 \(it is f32\[2,34\] now\)") as told:
        sizes_of(range(10, 50, 3))
    assert len(told) == 1


@pytest.mark.parametrize(
    "sizes", [(10, 12, 13, 11, 15, 14, 17, 19, 18, 20, 16), range(50, 39, -1), (10, 11, 12, 13, 14, 15, 16, 17)]
)
def test_other_loops_are_not(sizes):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sizes_of(sizes)


def test_small_programs_are_not():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sizes_of(range(10, 22), operators=5)
    assert len(lazy_runtime.debug.recompiles()) > 8
