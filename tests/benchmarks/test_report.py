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
    assert "| resnet18 | 2.00 | 4.00 | 1.0e-04 float32 outputs |" in lines
    assert "| vgg16 | 8.00 | 1.00 | 1.0e-04 float32 outputs |" in lines
    assert "| geomean | 4.00 | 2.00 | |" in lines


def test_times_have_their_spread():
    assert "| resnet18 | 40.0 (2.0) | 20.0 (2.0) | 10.0 (2.0) | 1 | 1.0e-04 float32 outputs |" in _lines(
        report.tables(ROWS)
    )


def test_a_failure_stands_in_place_of_times_and_is_left_out_of_the_geomean():
    rows = [*ROWS[:5], _row("vgg16", "openxla", None, failure="error 2.0e+00 in float32 outputs")]
    text = report.tables(rows)
    lines = _lines(text)
    assert "| vgg16 | failed | failed | 1.0e-04 float32 outputs |" in lines
    assert "| geomean | 2.00 (of 1) | 4.00 (of 1) | |" in lines
    assert "| vgg16 | 10.0 (2.0) | 80.0 (2.0) | failed | 1 | 1.0e-04 float32 outputs |" in lines
    assert "vgg16 inference openxla failed: error 2.0e+00 in float32 outputs" in text


def test_rows_without_times_show_errors():
    lines = _lines(report.tables([_row("resnet18", "openxla", None)]))
    assert "| resnet18 | 3.0e-07 | 1.0e-04 float32 outputs |" in lines


def test_a_reused_executable_and_recompiles_show():
    rows = [dict(row) for row in ROWS[:3]]
    rows[2] |= {"first_call_compiles": 0, "recompiles": 4}
    text = report.tables(rows)
    assert "1.2 (compiled before)" in text
    assert "10.0 (2.0, compiles 4 times)" in text


def test_no_speedups_without_openxla():
    assert "speedup" not in report.tables(ROWS[:2])


def _step(mode, median, host=None, loop=1):
    row = _row("vgg16", mode, median, "step") | {"loop": loop, "settling_s": 0.5, "settling_compiles": 1}
    if host is not None:
        row |= {"executions_per_step": 1.0, "compiles_per_step": 0.25}
        row |= {"host_ms": host, "host_quartiles_ms": [host - 0.5, host + 0.5]}
    return row


STEPS = [_step("eager", 40.0), _step("lazy", 30.0, 10.0), _step("openxla", 20.0, 8.0), _step("openxla_step", 10.0, 1.0)]


def test_steps_have_the_speedups_of_both_forms():
    lines = _lines(report.tables(STEPS))
    first = lines.index("### Step: speedup of openxla")
    second = lines.index("### Step: speedup of openxla_step")
    assert lines[first + 2] == "| model | over lazy | over eager | relative error at most |"
    assert lines[first + 5] == "| geomean | 1.50 | 2.00 | |"
    assert lines[second + 2] == "| model | over lazy | over eager | over openxla | relative error at most |"
    assert lines[second + 5] == "| geomean | 3.00 | 4.00 | 2.00 | |"


def test_work_and_host_time_of_steps():
    text = report.tables(STEPS)
    lines = _lines(text)
    assert "### Step: executions, compiles per step" in text
    assert "| vgg16 | 1, 0.25 | 1, 0.25 | 1, 0.25 |" in lines
    assert "| model | lazy | openxla | openxla_step | openxla / lazy | openxla_step / lazy |" in lines
    assert "| vgg16 | 10.00 (1.00) | 8.00 (1.00) | 1.00 (1.00) | 0.800 | 0.100 |" in lines
    assert "### Step: seconds of the first 3 steps (compiles)" in text
    assert "| vgg16 | 1.8 | 1.8 (2) | 1.8 (2) | 1.8 (2) |" in lines


def test_steps_that_failed_have_no_work():
    rows = [*STEPS[:3], _step("openxla_step", None) | {"failure": "it broke"}]
    rows[-1].pop("settling_s")
    lines = _lines(report.tables(rows))
    assert "| vgg16 | 1, 0.25 | 1, 0.25 | failed |" in lines
    assert "| vgg16 | 10.00 (1.00) | 8.00 (1.00) | failed | 0.800 | - |" in lines


def test_eager_steps_alone_have_no_tables_of_xlas_work():
    assert "executions" not in report.tables(STEPS[:1])
    assert "until the step function returns" not in report.tables(STEPS[:1])


def test_loops_are_named():
    assert "### Step, loops of 30: milliseconds, median" in report.tables([_step("lazy", 1.0, 1.0, loop=30)])


@pytest.mark.parametrize("test", ["inference", "training"])
def test_tests_have_tables_of_their_own(test):
    assert f"### {test.capitalize()}: milliseconds" in report.tables([_row("vgg16", "eager", 1.0, test)])


def test_batch_sizes_have_tables_of_their_own():
    rows = [*ROWS, *({**row, "batch_size": 1, "median_ms": 2 * row["median_ms"]} for row in ROWS)]
    lines = _lines(report.tables(rows))
    assert lines.count("### Inference: speedup of openxla") == 1
    assert lines.count("### Inference, batch 1: speedup of openxla") == 1
    assert "### Inference, batch 1: seconds of the first call" in lines


def test_a_comparison_has_a_roofline_and_its_geomeans():
    environment = {
        "record": "environment",
        "machine": {"cpu": "EPYC", "cores": 2, "memory_gib": 23.5, "system": "Linux"},
        "versions": {"torch": "2.13.0"},
        "flags": {},
        "commit": "abc",
        "gemm_gflops": 200.0,
        "torch_xla": {"torch": "2.9.1", "openvino": None},
    }
    text = report.tables([environment, *({**row, "flops": 10**9} for row in ROWS)])
    lines = _lines(text)
    assert lines[0].endswith(
        "flags: none; commit abc; matrix products at 200 GFLOP/s; "
        "the modes torch_xla and torch_xla_lazy with torch 2.9.1"
    )
    assert "| resnet18 | 40.0 (2.0) | 20.0 (2.0) | 10.0 (2.0) | 5.0 | 1 | 1.0e-04 float32 outputs |" in lines
    environment["read_gbytes"] = 10.0
    text = report.tables([environment, *({**row, "flops": 10**9, "weight_bytes": 80 * 10**6} for row in ROWS)])
    assert "; commit abc; matrix products at 200 GFLOP/s, memory read at 10.0 GB/s; " in text
    assert "| resnet18 | 40.0 (2.0) | 20.0 (2.0) | 10.0 (2.0) | 8.0 | 1 | 1.0e-04 float32 outputs |" in _lines(text)
    assert "| lazy | 4.00 | 1.00, met | 2.00 (resnet18) | 0.97, met |" in lines
    assert "roofline" not in report.tables(ROWS)
    assert "asked for" not in report.tables(ROWS)
