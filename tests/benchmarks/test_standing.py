import re

from benchmarks import standing


def _rows(**models):
    return {
        model: {mode: {"median_ms": median} if median else {"failure": "no"} for mode, median in modes.items()}
        for model, modes in models.items()
    }


def _lines(text):
    return [re.sub(r"\s+", " ", line) for line in text.splitlines()]


INFERENCE = _rows(
    resnet18={"eager": 40.0, "inductor": 30.0, "inductor_freezing": 20.0, "lazy": 20.0, "openxla": 20.0},
    vgg16={"eager": 40.0, "inductor": 30.0, "inductor_freezing": 12.0, "lazy": 30.0, "openxla": 20.0},
)


def test_the_fastest_of_several_counts_model_by_model():
    lines = _lines(standing.table("inference", None, INFERENCE))
    assert lines[0] == "| openxla's speedup over | geomean | asked for | worst model | asked for |"
    assert "| inductor | 1.50 | 1.30, met | 1.50 (resnet18) | |" in lines
    assert "| the fastest other | 0.77 | 1.00, missed | 0.60 (vgg16) | 0.80, missed |" in lines
    assert "| lazy | 1.22 | 1.00, met | 1.00 (resnet18) | 0.97, met |" in lines
    assert not any("torch_xla" in line for line in lines)


def test_other_bounds_for_one_image():
    assert "| inductor | 1.50 | 1.20, met | 1.50 (resnet18) | |" in _lines(standing.table("inference", 1, INFERENCE))


def test_models_without_times_are_left_out():
    rows = {**INFERENCE, **_rows(alexnet={"inductor": 10.0, "openxla": None})}
    assert "| inductor | 1.50 (of 2) | 1.30, met | 1.50 (resnet18) | |" in _lines(
        standing.table("inference", None, rows)
    )


def test_training_and_steps():
    rows = _rows(vgg16={"eager": 60.0, "eager_channels_last": 40.0, "openxla": 20.0, "openxla_step": 30.0})
    training, steps = (_lines(standing.table(test, None, rows)) for test in ("training", "step"))
    assert "| the fastest of eager, channels_last, inductor | 2.00 | 1.10, met | 2.00 (vgg16) | |" in training
    assert steps[0].startswith("| openxla_step's speedup over |")
    assert "| eager | 2.00 | 1.20, met | 2.00 (vgg16) | |" in steps


def test_nothing_to_compare_with():
    assert standing.table("inference", None, _rows(vgg16={"openxla": 20.0})) == ""
    assert standing.table("inference", None, _rows(vgg16={"eager": 20.0})) == ""
