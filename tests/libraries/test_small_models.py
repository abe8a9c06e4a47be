"""A small model of each of several libraries, unmodified, gives the numbers of the CPU."""

from __future__ import annotations

import pytest

from tests.libraries.running import needs, on_cpu, on_xla

# float32 in another order of additions, over a few steps of training
CLOSE = {"rel": 1e-4, "abs": 1e-5}

# torchao rounds each row's largest weight, which is at ±127.5 steps by its choice of the scale. XLA multiplies by the
# reciprocal where torch divides by 127.5, so that one bit of the scale decides there, and weights differ by a step.
STEPS_OF_INT8 = {"abs": 5e-3}

pytestmark = pytest.mark.long

LIBRARIES = {
    "ignite": {},
    "keras": {},
    "kornia": {},
    "peft": {},
    "segmentation_models_pytorch": {},
    "sentence_transformers": {},
    "timm": {},
    "torch_geometric": {},
    "torchao": STEPS_OF_INT8,
    "torchmetrics": {},
    "x_transformers": {},
}

#: Libraries whose training step reads nothing: it is one execution, and is compiled once for each of its two graphs.
ONE_EXECUTION = {"peft", "segmentation_models_pytorch", "timm", "x_transformers"}


@pytest.mark.parametrize(
    ("library", "tolerance"), [pytest.param(*row, marks=needs(row[0])) for row in LIBRARIES.items()]
)
def test_library(library, tolerance, tmp_path):
    cpu = on_cpu("small_models.py", library, "cpu", folder=tmp_path)["numbers"]
    xla = on_xla("small_models.py", library, "xla", folder=tmp_path)
    assert len(cpu) > 2
    assert xla.found["numbers"] == pytest.approx(cpu, **(tolerance or CLOSE))
    if library in ONE_EXECUTION:
        assert xla.per_step(2, 4) == [(1, 0)] * (len(xla.executions) - 2)
