"""The fuzzer's share of the test suite: what once failed, and the first few programs of one seed."""

from __future__ import annotations

import re

import pytest

from . import workers
from .difference import Difference
from .shrink import shrink
from .views import check, generate, smaller
from .views.language import Machine, Program
from .views.regressions import REGRESSIONS


@pytest.mark.parametrize("name", REGRESSIONS)
def test_what_once_failed(name):
    difference = check(Program.parse(REGRESSIONS[name]))
    assert difference is None, f"{difference}\n{REGRESSIONS[name]}"


@pytest.mark.parametrize("seed", range(4))
def test_random_programs(seed):
    for program in generate(seed, 15):
        difference = check(program)
        assert difference is None, f"{difference}\n{program}"


def test_programs_are_the_same_for_the_same_seed_and_read_back():
    programs = generate(5, 10)
    assert programs == generate(5, 10) != generate(6, 10)
    assert [Program.parse(str(program)) for program in programs] == programs


@pytest.mark.parametrize("road", ["lazy", "eager", "compile"])
def test_a_wrong_result_is_found(road, monkeypatch):
    made = Machine.values
    wrong = lambda self, *args: made(self, *args) + (self.device != "cpu")  # noqa: E731
    monkeypatch.setattr(Machine, "values", wrong)
    difference = check(Program(("t0 = values((2,), float32)",), ("t1 = t0 * 2",)), [road])
    assert difference is not None
    assert (difference.road, difference.kind) == (road, "values")
    assert difference.text == "t0: [-2.0, 3.0] on the CPU, [-1.0, 4.0] on xla"


def test_shrinking_leaves_what_fails():
    program = Program(
        ("t0 = strided((2, 3), (1, 2), int64)", "t1 = values((2,), float32).requires_grad_()", "t2 = t1 * 2"),
        ("t3 = t0.t()", "with torch.no_grad(): t3[1:].add_(t0)", "sync()"),
        ("t4 = t2.sum()",),
    )
    small = shrink(program, lambda candidate: bool(re.search(r"t3.*add_", str(candidate))), smaller)
    assert small == Program((), ("t3.add_(t0)",))


def test_a_program_that_kills_its_process_is_known():
    worker = workers.Worker()
    try:
        killer = Program(("import os", "os._exit(3)"))
        assert worker.check(killer, ["lazy"]) == Difference("process", "exit 3", "the process ended with status 3")
        assert worker.check(Program(("t0 = values((2,), float32)",)), ["lazy"]) is None  # another one has taken over
    finally:
        worker.close()
