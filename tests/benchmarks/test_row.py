import pytest
import torch

from benchmarks.row import Row
from benchmarks.verify import Reference
from lazy_runtime.common import metrics

EXPECTED = Reference({"output 0": torch.ones(2)})


class FakeProgram:
    """A program whose second result may differ from its first, and whose run may raise."""

    taken_s = None

    def __init__(self, *outputs, raises_at=None):
        self.outputs = outputs
        self.runs = 0
        self.raises_at = raises_at

    def run(self):
        self.runs += 1
        if self.runs == self.raises_at:
            raise RuntimeError("it broke\nin detail")

    def round(self):
        self.run()
        return ()

    def clear(self):
        pass

    def results(self):
        return {"output 0": self.outputs[min(self.runs, len(self.outputs)) - 1]}


def _row(program, expected=EXPECTED):
    row = Row({"model": "vgg16", "test": "inference", "mode": "lazy"})
    row.first_call(lambda: program, expected)
    return row


def test_a_row_that_passes_gets_its_times():
    row = _row(FakeProgram(torch.ones(2)))
    row.run()
    row.compare(EXPECTED)
    row.finish([0.001, 0.002, 0.003])
    record = row.finished()
    assert record["failure"] is None
    assert record["times_ms"] == [1.0, 2.0, 3.0]
    assert record["median_ms"] == pytest.approx(2.0)
    assert record["recompiles"] == 0
    assert record["checks"] == [{"what": "float32 outputs", "error": 0.0, "bound": 1e-4}]


def test_a_program_with_a_clock_of_its_own_has_the_say():
    program = FakeProgram(torch.ones(2))
    row = _row(program)
    assert row.run() is None
    program.taken_s = 0.5
    assert row.run() == 0.5


class FakeSteps(FakeProgram):
    """Loops of two steps, each of which executes a program twice; the first round also compiles one."""

    def round(self):
        self.run()
        metrics.count("ExecuteComputation", 4)
        metrics.count("UncachedCompile", self.runs == 2)
        return [0.001, 0.003]


def _steps(mode):
    row = Row({"model": "vgg16", "test": "step", "mode": mode, "loop": 2})
    row.first_call(lambda: FakeSteps(torch.ones(2)), EXPECTED)
    for _ in range(3):
        row.run()
    row.finish([0.010, 0.020])  # the first round is not kept
    return row.finished()


def test_steps_of_a_loop_have_their_share_of_its_time_and_work():
    record = _steps("lazy")
    assert record["times_ms"] == [5.0, 10.0]
    assert record["executions_per_step"] == 2.0
    assert record["compiles_per_step"] == 0.0
    assert record["recompiles"] == 1
    assert record["host_ms"] == pytest.approx(2.0)
    assert record["checks"][0]["what"] == "float32 updates"


def test_work_is_counted_on_xla_alone():
    assert "executions_per_step" not in _steps("eager")


def test_steps_before_the_timed_ones_are_taken_down():
    row = Row({"model": "vgg16", "test": "step", "mode": "lazy", "loop": 1})
    program = FakeProgram(torch.ones(2))
    row.first_call(lambda: program, EXPECTED)
    row.settle(2)
    assert program.runs == 3
    assert row.record["settling_compiles"] == 0
    assert row.record["settling_s"] > 0
    assert not row.rounds


def test_wrong_results_take_the_place_of_times():
    row = _row(FakeProgram(torch.full((2,), 1.5)))
    assert row.program is None
    row.finish([0.001])
    record = row.finished()
    assert record["failure"] == "error 5.0e-01 in float32 outputs, at most 1.0e-04 is allowed"
    assert "median_ms" not in record


def test_wrong_results_of_a_later_call_are_found():
    row = _row(FakeProgram(torch.ones(2), torch.zeros(2)))
    assert row.failure is None
    row.run()
    row.compare(EXPECTED)
    row.finish([0.001])
    assert row.finished()["failure"] == "error 1.0e+00 in float32 outputs, at most 1.0e-04 is allowed"


def test_the_worse_of_two_checks_is_kept():
    row = _row(FakeProgram(torch.full((2,), 1 + 1e-5), torch.ones(2)))
    row.run()
    row.compare(EXPECTED)
    assert row.checks["float32 outputs"].error == pytest.approx(1e-5, rel=0.1)


@pytest.mark.parametrize("call", [1, 2])
def test_an_exception_is_the_rows_failure(call):
    row = _row(FakeProgram(torch.ones(2), raises_at=call))
    row.run()
    row.run()
    row.finish([0.001])
    record = row.finished()
    assert record["failure"] == "RuntimeError: it broke"
    assert "median_ms" not in record


def test_a_program_that_cannot_be_made_is_a_failure():
    def make():
        raise NotImplementedError("no such operator")

    row = Row({"model": "vgg16", "test": "inference", "mode": "lazy"})
    row.first_call(make, EXPECTED)
    assert row.finished()["failure"] == "NotImplementedError: no such operator"
