import pytest
import torch

import lazy_runtime
from lazy_runtime.common import metrics as store
from lazy_runtime.torch_xla.debug import metrics as met
from lazy_runtime.torch_xla.debug import metrics_compare_utils as mcu


def report(times, count):
    store.clear()
    for seconds in times:
        store.record("SomeTime", seconds * 1e9)
    store.record("SomeBytes", 3e6, store.Unit.BYTES)
    store.record("SomeValue", 7, store.Unit.VALUE)
    store.count("SomeCounter", count)
    return met.metrics_report()


def test_the_numbers_of_a_report():
    found = mcu.parse_metrics_report(report([1.5, 90.0, 4000.25], 3))
    assert found["SomeTime__TotalSamples"] == 3
    assert found["SomeTime__Accumulator_sec"] == pytest.approx(4091.75)
    assert found["SomeTime__Percentile_50_sec"] == pytest.approx(90.0)
    assert found["SomeBytes__Accumulator_mb"] == pytest.approx(3.0, rel=0.1)  # 2**20 or 10**6
    assert found["SomeValue__Accumulator"] == 7
    assert found["SomeCounter__Value"] == 3
    assert mcu.parse_metrics_report(report([1.5], 3), dehumanize=False)["SomeValue__Accumulator"] == (7.0, "7.00")


def test_a_real_report():
    store.clear()
    (torch.ones(3, device="xla") + 1).cpu()
    lazy_runtime.sync()
    found = mcu.parse_metrics_report(met.metrics_report())
    counted, measured = store.snapshot()
    assert {name.partition("__")[0] for name in found} == {*counted, *measured}
    assert found["CompileTime__Accumulator_sec"] > 0


def test_several_reports():
    reports = [report([1.0], 1), report([2.0], 2), ""]
    found = mcu.get_data_points_from_metrics_reports(reports)
    assert found["SomeCounter__Value"] == [1, 2, None]


def test_what_has_changed():
    known = mcu.get_data_points_from_metrics_reports([report([1.0], n) for n in (9, 10, 11)])
    assert mcu.compare_metrics(known, report([1.0], 11)) == ""
    assert "SomeCounter__Value: 20 fails" in mcu.compare_metrics(known, report([1.0], 20))
    config = {"SomeCounter__Value_expression": "v >= v_mean"}
    assert "SomeCounter__Value: 5 fails v >= v_mean" in mcu.compare_metrics(known, report([1.0], 5), config)
    assert mcu.compare_metrics(known, report([1.0], 20), config) == ""
    store.count("aten::new_operator")
    assert "aten::new_operator__Value: 1" in mcu.compare_metrics(known, met.metrics_report())


def test_no_number():
    with pytest.raises(ValueError, match="'many' is no number"):
        mcu._number("many")
    assert mcu._number("01d02h03m04s005ms006.5us") == pytest.approx((93784.0050065, "sec"))
