import re

import pytest

from benchmarks import report


def _row(model, mode, median, test="inference", failure=None):
    row = {
        "record": "row",
        "model": model,
        "test": test,
        "mode": mode,
        "checks": [{"what": "float32 outputs", "error": 3e-7, "bound": 1e-4}],
        "failure": failure,
        "first_call_s": 1.25,
        "first_call_compiles": 1,
    }
    if failure is None and median is not None:
        row |= {"times_ms": [median], "median_ms": median, "quartiles_ms": [median - 1, median + 1], "recompiles": 0}
    return row


def _lines(text):
    """Table lines with single spaces."""
    return [re.sub(r"\s+", " ", line) for line in text.splitlines()]


ROWS = [
    _row("resnet18", "eager", 40.0),
    _row("resnet18", "lazy", 20.0),
    _row("resnet18", "openxla", 10.0),
    _row("vgg16", "eager", 10.0),
    _row("vgg16", "lazy", 80.0),
    _row("vgg16", "openxla", 10.0),
]


def test_speedups_have_lazy_first_and_the_geomean_last():
    lines = _lines(report.tables(ROWS))
    assert "| model | over lazy | over eager | relative error at most |" in lines
    assert "| resnet18 | 2.00 | 4.00 | 1e-04 float32 outputs |" in lines
    assert "| vgg16 | 8.00 | 1.00 | 1e-04 float32 outputs |" in lines
    assert "| geomean | 4.00 | 2.00 | |" in lines


def test_times_have_their_spread():
    assert "| resnet18 | 40.0 (2.0) | 20.0 (2.0) | 10.0 (2.0) | 1 | 1e-04 float32 outputs |" in _lines(
        report.tables(ROWS)
    )


def test_a_failure_stands_in_place_of_times_and_is_left_out_of_the_geomean():
    rows = [*ROWS[:5], _row("vgg16", "openxla", None, failure="error 2.0e+00 in float32 outputs")]
    text = report.tables(rows)
    lines = _lines(text)
    assert "| vgg16 | failed | failed | 1e-04 float32 outputs |" in lines
    assert "| geomean | 2.00 (of 1) | 4.00 (of 1) | |" in lines
    assert "| vgg16 | 10.0 (2.0) | 80.0 (2.0) | failed | 1 | 1e-04 float32 outputs |" in lines
    assert "vgg16 inference openxla failed: error 2.0e+00 in float32 outputs" in text


def test_rows_without_times_show_errors():
    lines = _lines(report.tables([_row("resnet18", "openxla", None)]))
    assert "| resnet18 | 3.0e-07 | 1e-04 float32 outputs |" in lines


def test_a_reused_executable_and_recompiles_show():
    rows = [dict(row) for row in ROWS[:3]]
    rows[2] |= {"first_call_compiles": 0, "recompiles": 4}
    text = report.tables(rows)
    assert "1.2 (compiled before)" in text
    assert "10.0 (2.0, compiles 4 times)" in text


def test_no_speedups_without_openxla():
    assert "speedup" not in report.tables(ROWS[:2])


@pytest.mark.parametrize("test", ["inference", "training"])
def test_tests_have_tables_of_their_own(test):
    assert f"### {test.capitalize()}: milliseconds" in report.tables([_row("vgg16", "eager", 1.0, test)])
