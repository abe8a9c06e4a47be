import json

import pytest

from lazy_runtime.common.metrics import Metric, Unit
from lazy_runtime.debug import formats


def metric(unit, *values, step=0.001):
    found = Metric(unit)
    for number, value in enumerate(values):
        found.samples.append((1000 + number * step, value))
        found.total += 1
        found.accumulator += value
    return found


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "000.000us"),
        (32_778, "032.778us"),
        (1_032_778, "001ms032.778us"),
        (1_600_000_000, "01s600ms000.000us"),
        (369_401_746_001, "06m09s401ms746.001us"),
        (59_999_999_999.9, "01m00s000ms000.000us"),
        (90_061_001_002_003, "01d01h01m01s001ms002.003us"),
    ],
)
def test_times_are_written_like_pytorch_xlas(nanoseconds, text):
    assert formats.time_text(nanoseconds) == text


def test_bytes_and_values_are_written_like_pytorch_xlas():
    assert [formats.bytes_text(n) for n in (0, 1023, 1024, 1.29 * 2**30, 5e18)] == [
        "0.00B",
        "1023.00B",
        "1.00KB",
        "1.29GB",
        "4440.89PB",
    ]
    assert [formats.value_text(n) for n in (0, 35, 1.5e12)] == ["0.00", "35.00", "1500000000000.00"]


def test_the_report_is_the_one_that_torchs_own_code_writes():
    """The text is what torch::lazy::CreateMetricReport, linked from torch 2.13, gives for these samples."""
    measured = {"CompileTime": metric(Unit.TIME, *(1.5e6 * n for n in range(150)), step=0.001)}
    report = formats.classic({"xla::add": 3}, measured)
    # the rate depends on the clock's last digits, the rest does not
    assert [line for line in report.splitlines() if "Rate" not in line] == [
        "Metric: CompileTime",
        "  TotalSamples: 150",
        "  Accumulator: 16s762ms500.000us",  # torch rounds the seconds as well: 17s762ms500.000us
        "  Percentiles: 1%=001ms500.000us; 5%=010ms500.000us; 10%=022ms500.000us; 20%=045ms000.000us; "
        "50%=112ms500.000us; 80%=180ms000.000us; 90%=202ms500.000us; 95%=213ms000.000us; 99%=222ms000.000us",
        "Counter: xla::add",
        "  Value: 3",
    ]
    assert "  ValueRate: 01m52s500ms" in report
    assert "  Rate: 1006.71 / second\n" in report


def test_one_sample_has_no_rate():
    report = formats.classic({}, {"TensorsGraphSize": metric(Unit.VALUE, 7)})
    assert "Rate" not in report
    assert "1%=7.00; " in report
    assert "99%=7.00\n" in report


def test_prometheus():
    text = formats.prometheus(
        {"xla::add": 3, "aten::nonzero": 1, "Recompile::input_shape": 2, "UncachedCompile": 4},
        {"CompileTime": metric(Unit.TIME, 2e9, 4e9), "CompiledPeakMemory": metric(Unit.BYTES, 1024)},
    )
    lines = text.splitlines()
    for line in (
        "# TYPE xla_operators_total counter",
        'xla_operators_total{operator="add"} 3',
        'xla_fallbacks_total{operator="nonzero"} 1',
        'xla_recompiles_total{cause="input_shape"} 2',
        "xla_uncached_compile_total 4",
        "# TYPE xla_compile_time_seconds summary",
        'xla_compile_time_seconds{quantile="0.99"} 4',
        "xla_compile_time_seconds_sum 6",
        "xla_compile_time_seconds_count 2",
        "xla_compiled_peak_memory_bytes_sum 1024",
    ):
        assert line in lines
    assert len({line for line in lines if line.startswith("# TYPE")}) == sum(line.startswith("#") for line in lines)


def test_json():
    found = json.loads(formats.json_text({"MarkStep": 5}, {"CompileTime": metric(Unit.TIME, 2e9, 4e9)}))
    assert found["counters"] == {"MarkStep": 5}
    assert found["metrics"]["CompileTime"]["unit"] == "nanoseconds"
    assert found["metrics"]["CompileTime"]["accumulator"] == 6e9
    assert found["metrics"]["CompileTime"]["percentiles"]["99%"] == 4e9
