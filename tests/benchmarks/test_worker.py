"""What the results of a model's process are compared with."""

from __future__ import annotations

import pytest
import torch

from benchmarks import verify, worker
from benchmarks.worker import Request


def _request(model: str) -> Request:
    return Request(model, ["training"], ["eager"], batch_size=2, image_size=32)


@pytest.fixture
def eager():
    """Of a model with batch norm: eager's gradients in float32."""
    request = _request("resnet18")
    model = worker.models.without_dropout(worker.models.build(request.model)).train()
    program = request.program("training", "eager", model, worker.models.example(request.model, 2, 32))
    program.run()
    return program.results()


def test_gradients_through_batch_norm_are_held_to_float64(eager):
    reference = worker.reference(_request("resnet18"), "training", eager)
    assert reference.own_error == verify.relative_error(eager, reference.results)
    assert 1e-7 < reference.own_error < 5e-2
    assert verify.check("training", eager, reference).passed
    wrong = {name: tensor + 3 * (eager[name] - reference.results[name]) for name, tensor in eager.items()}
    found = verify.check("training", wrong, reference)
    assert found.error == pytest.approx(4 * reference.own_error, rel=1e-2)
    assert found.bound == max(1e-3, 2 * reference.own_error)


@pytest.mark.parametrize(("model", "test"), [("vgg16", "training"), ("vgg16", "step"), ("resnet18", "inference")])
def test_all_else_is_held_to_eager(model, test):
    results = {"weight": torch.ones(2)}
    assert worker.reference(_request(model), test, results) == (results, 0.0)
