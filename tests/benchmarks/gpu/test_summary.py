import re

from benchmarks.gpu import summary
from benchmarks.gpu.settings import REPLACED

SETTINGS = {"record": "settings", "dry": False, "minutes": 9.0, "models": ["vgg16"]}
END = {"record": "end", "how": "ended", "seconds": 500.0, "minutes": 9.0}


def _row(model, role, median, failure=None):
    row = {"record": "row", "model": model, "test": "inference", "precision": "tf32", "role": role, "mode": role}
    return {**row, "failure": failure, "flops": 4 * 10**9, **({} if median is None else {"median_ms": median})}


ROWS = [
    _row("resnet18", "eager", 4.0),
    _row("resnet18", "inductor", 2.0),
    _row("resnet18", "openxla", 1.0),
    _row("vgg16", "eager", 4.0),
    _row("vgg16", "inductor", 4.0),
    _row("vgg16", "openxla", None, "its process died"),
]


def _lines(*records):
    return [re.sub(r"\s+", " ", line) for line in summary.text([SETTINGS, *records]).splitlines()]


def test_models_with_speedups_means_and_failures():
    rates = {"record": "rates", "failure": None, "rates": {"tf32": 400.0, "copy": 4000.0}}
    lines = _lines(rates, {"record": "sizes", "failure": None, "sizes": {}}, *ROWS, END)
    assert "| model | eager, ms | Inductor | openxla | openxla / fastest other | share of the roofline |" in lines
    assert "| resnet18 | 4.00 | 2.00 | 4.00 | 2.00 | 1.0 % |" in lines
    assert "| vgg16 | 4.00 | 1.00 | failed | failed | - |" in lines
    assert "| geomean, published | | 1.41 | 4.00 (of 1) | 2.00 (of 1) | |" in lines
    assert "- vgg16 inference tf32 openxla: its process died" in lines
    assert "| tf32 | 400 | TFLOP/s |" in lines
    assert "The program ended after 500 s of 540." in lines


def test_one_that_was_killed_says_so():
    assert "The program is not through, or was killed: what follows is what it had until then." in _lines(*ROWS)


def test_a_dry_run_says_what_stands_for_the_gpu():
    text = summary.text([{**SETTINGS, "dry": True}, END])
    assert "A dry run: nothing here was measured on a GPU." in text
    assert all(f"- {line}" in text for line in REPLACED)
    assert "dry run" not in summary.text([SETTINGS, END])


def test_checks_profiles_and_what_is_left_out():
    named = {"model": "vgg16", "test": "step", "precision": "tf32", "mode": "openxla"}
    lines = _lines(
        {"record": "smoke", "check": "compiled on xla", "failure": None, "error": 2e-7},
        {"record": "smoke", "check": "operators on xla", "failure": "no device"},
        {"record": "build", "failure": "no compiler"},
        {"record": "profile", **named, "failure": None, "top": [{"name": "a|b", "ms": 0.5, "calls": 2.0}]},
        {"record": "profile", **named, "failure": "no trace"},
        {"record": "left_out", "what": "step bfloat16 of lstm", "why": "12 s were left, too few for a wave"},
        {"record": "phase", "what": "models", "seconds": 300.0, "failure": "KeyError: 'x'"},
    )
    assert "| compiled on xla | relative error 2.0e-07 |" in lines
    assert "| operators on xla | no device |" in lines
    assert "| 0.5000 | 2 | a/b |" in lines
    assert "failed: no trace" in lines
    assert "- step bfloat16 of lstm: 12 s were left, too few for a wave" in lines
    assert "- build: no compiler" in lines
    assert "- models: KeyError: 'x'" in lines
    assert "| models | 300 |" in lines
