import pytest
import torch

from benchmarks.row import Row

EXPECTED = {"output 0": torch.ones(2)}


class FakeProgram:
    """A program whose second result may differ from its first, and whose run may raise."""

    def __init__(self, *outputs, raises_at=None):
        self.outputs = outputs
        self.runs = 0
        self.raises_at = raises_at

    def run(self):
        self.runs += 1
        if self.runs == self.raises_at:
            raise RuntimeError("it broke\nin detail")

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


def test_wrong_results_take_the_place_of_times():
    row = _row(FakeProgram(torch.full((2,), 1.5)))
    assert row.program is None
    row.finish([0.001])
    record = row.finished()
    assert record["failure"] == "error 5.0e-01 in float32 outputs, at most 1e-04 is allowed"
    assert "median_ms" not in record


def test_wrong_results_of_a_later_call_are_found():
    row = _row(FakeProgram(torch.ones(2), torch.zeros(2)))
    assert row.failure is None
    row.run()
    row.compare(EXPECTED)
    row.finish([0.001])
    assert row.finished()["failure"] == "error 1.0e+00 in float32 outputs, at most 1e-04 is allowed"


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
