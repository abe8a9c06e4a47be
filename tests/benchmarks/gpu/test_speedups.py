import pytest

from benchmarks.gpu import speedups

RATES = {"tf32": 400.0, "bfloat16": 800.0, "copy": 4000.0}


def row(model, role, median, test="inference", precision="tf32", failure=None, **more):
    record = {"record": "row", "model": model, "test": test, "precision": precision, "role": role, "mode": role}
    return {**record, "failure": failure, **({} if median is None else {"median_ms": median}), **more}


ROWS = [
    row("resnet18", "eager", 4.0, flops=4 * 10**9),
    row("resnet18", "inductor", 2.0),
    row("resnet18", "openxla", 1.0, flops=4 * 10**9),
    row("vgg16", "eager", 3.0),
    row("vgg16", "inductor", None, failure="it broke"),
    row("vgg16", "openxla", 6.0),
    row("vgg16", "openxla_tensors", 4.0),
    row("resnet18", "eager", 9.0, test="step"),
    row("resnet18", "openxla_step", 10.0, test="step"),
]


def test_speedups_over_the_fastest_of_others():
    models = speedups.grouped(ROWS)["inference", "tf32"]
    assert speedups.speedup(models["resnet18"], "openxla", ["eager"]) == 4.0
    assert speedups.speedup(models["resnet18"], "openxla", speedups.OTHERS) == 2.0
    assert speedups.speedup(models["vgg16"], "openxla", speedups.OTHERS) == 0.5
    assert speedups.speedup(models["vgg16"], "inductor", ["eager"]) is None


def test_a_later_row_replaces_one_that_was_tried_before():
    models = speedups.grouped([row("vgg16", "eager", None, failure="it broke"), row("vgg16", "eager", 1.0)])
    assert models["inference", "tf32"]["vgg16"]["eager"]["median_ms"] == 1.0


def test_the_worst_models_are_named_once_each():
    found = [(each.model, each.test, each.speedup) for each in speedups.worst(ROWS, 2)]
    assert found == [("vgg16", "inference", 0.75), ("resnet18", "step", 0.9)]


def test_geomeans_say_of_how_many_they_are():
    assert speedups.geomean([2.0, 8.0]) == "4.00"
    assert speedups.geomean([2.0, None]) == "2.00 (of 1)"
    assert speedups.geomean([None]) == "-"


def test_the_roofline_is_of_products_or_of_memory():
    assert speedups.roofline_ms(ROWS[0], RATES, 4 * 10**6) == pytest.approx(0.01)
    assert speedups.roofline_ms(ROWS[0], RATES, 400 * 10**6) == pytest.approx(0.1)
    assert speedups.roofline_ms({**ROWS[0], "test": "step"}, RATES, 400 * 10**6) == pytest.approx(0.4)
    assert speedups.roofline_ms(ROWS[0], {}, 4) is None
    modes = speedups.grouped(ROWS)["inference", "tf32"]["resnet18"]
    assert speedups.share(modes, RATES, 4 * 10**6) == pytest.approx(0.01)
