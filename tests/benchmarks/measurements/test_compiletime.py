"""Compile times."""

from __future__ import annotations

from benchmarks.measurements import compiletime
from benchmarks.measurements.compiletime import Compiling


def test_both_tests_of_a_small_model_in_processes_of_their_own():
    for test in compiletime.TESTS:
        found = compiletime.found("squeezenet1_1", test, "openxla")
        # Programs are compiled side by side, so that their sum may exceed the first run.
        assert found.compiler > 0
        assert found.first > 0


def test_the_compilers_time_is_held_to_inductors(monkeypatch):
    times = {"inductor": Compiling(10.0, 0.0), "openxla": Compiling(9.0, 5.5)}

    def found(model: str, test: str, mode: str) -> Compiling:
        return Compiling(1.0, 0.4) if (test, mode) == ("step", "openxla") else times[mode]

    monkeypatch.setattr(compiletime, "found", found)
    rows = [line for line in compiletime.table(2, ["resnet50"]).splitlines() if line.startswith("| resnet50")]
    assert [[cell.strip() for cell in row.split("|")[2:8]] for row in rows] == [
        ["inference", "10.00", "9.00", "5.50", "0.55", "missed"],
        ["step", "10.00", "1.00", "0.40", "0.04", "met"],
    ]
