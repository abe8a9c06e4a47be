"""Gradients of real models in float64, lazily, compiled, and on CPU tensors, are eager's.

All of them take most of an hour and are marked `long` (`make test-gradients`), but for two.
"""

from __future__ import annotations

import gc

import pytest
import torch

from lazy_runtime.compilation import compiler
from tests.gradients.compare import ROADS, differences
from tests.gradients.models import MODELS

# torch's own, while Dynamo traces, and those of the libraries
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
    pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`:UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

SHORT = ("timm.xcit_nano_12_p16_224", "transformers.GPT2LMHeadModel")
CASES = [pytest.param(name, marks=[] if name in SHORT else pytest.mark.long) for name in MODELS]


@pytest.fixture(autouse=True)
def empty_afterwards():
    yield
    torch.compiler.reset()
    compiler.clear()
    gc.collect()
    torch.xla.empty_cache()


def test_there_are_forty_models():
    assert len(MODELS) >= 40


@pytest.mark.parametrize(
    "batch", [pytest.param(2, id="batch 2"), pytest.param(1, id="batch 1", marks=pytest.mark.long)]
)
@pytest.mark.parametrize("name", CASES)
def test_gradients(name, batch):
    model = MODELS[name]
    wrong = {
        road: worst for road, worst in differences(model, batch, list(ROADS)) if not worst.error <= model.tolerance
    }
    assert not wrong
