"""What is started in the time that is left, by a clock of the test's."""

import pytest

from benchmarks.gpu.planner import LeftOut, Planner


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def left_out():
    return []


@pytest.fixture
def planner(clock, left_out):
    return Planner(540.0, prepare_s=100.0, timing_s=10.0, reserve_s=40.0, tell=left_out.append, clock=clock)


def test_time_passes_and_some_is_reserved(planner, clock):
    assert planner.left_s == 500.0
    clock.now += 120.0
    assert (planner.elapsed_s, planner.left_s) == (120.0, 380.0)
    clock.now += 1000.0
    assert planner.left_s == 0.0


def test_a_part_that_does_not_fit_is_left_out(planner, clock, left_out):
    assert planner.may_start("profiles", 30.0)
    clock.now += 480.0
    assert not planner.may_start("profiles", 30.0)
    assert left_out == [LeftOut("profiles", "it needs 30 s, and 20 s were left")]


def test_a_limit_ends_with_the_program(planner, clock):
    assert planner.limit_s(75.0) == 75.0
    clock.now += 460.0
    assert planner.limit_s(75.0) == 40.0


@pytest.mark.parametrize(
    ("passed", "waiting", "keep_s", "size"),
    [
        (0.0, 20, 0.0, 8),  # as many as the cores allow
        (0.0, 3, 0.0, 3),  # as many as there are
        (350.0, 20, 0.0, 5),  # what can be timed after the preparation
        (350.0, 20, 20.0, 3),  # ... and leaves time for later parts
        (395.0, 20, 0.0, 0),
        (900.0, 20, 0.0, 0),
        (0.0, 0, 0.0, 0),
    ],
)
def test_a_wave_has_as_many_models_as_can_be_timed(planner, clock, passed, waiting, keep_s, size):
    clock.now += passed
    assert planner.wave_size(waiting, 8, keep_s) == size


def test_a_wave_prepares_no_longer_than_leaves_time_to_time_it(planner, clock):
    assert planner.prepare_limit_s(8, 170.0) == 170.0
    clock.now += 350.0
    assert planner.prepare_limit_s(4, 170.0) == 110.0
    clock.now += 150.0
    assert planner.prepare_limit_s(4, 170.0) == 0.0


def test_the_last_wave_is_the_estimate_of_the_next(planner):
    planner.observe(prepared_s=300.0, timed_s=160.0, timed=4)
    assert planner.wave_size(20, 8) == 5
    planner.observe(prepared_s=60.0, timed_s=0.0, timed=0)
    assert (planner.prepare_s, planner.timing_s) == (60.0, 40.0)
