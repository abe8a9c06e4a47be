"""What is written in jax by hand computes what the model does."""

from __future__ import annotations

import pytest

from benchmarks import in_jax, models, verify
from benchmarks.__main__ import main
from benchmarks.modes import MODES
from benchmarks.worker import Request


@pytest.mark.parametrize(("test", "bound"), [("inference", 1e-5), ("training", 1e-4)])
@pytest.mark.parametrize("name", in_jax.MODELS)
def test_outputs_and_gradients_are_those_of_eager(name, test, bound):
    model = models.build(name).train(test == "training")
    inputs = models.example(name, 1)
    request = Request(name, [test], ["eager", "jax"])
    eager, program = (request.program(test, mode, model, inputs) for mode in request.modes_of(test))
    assert isinstance(program, in_jax.JaxProgram)
    for each in (eager, program):
        each.run()
    assert program.results().keys() == eager.results().keys()
    assert verify.relative_error(program.results(), eager.results()) < bound


def test_a_model_that_is_not_written_there(capsys):
    assert Request("resnet18", ["inference"], ["eager", "jax"]).modes_of("inference") == ["eager"]
    with pytest.raises(SystemExit):
        main(["run", "--models", "resnet18,vgg16", "--modes", "jax"])
    assert "mode jax has the models llama, lstm alone: use --models" in " ".join(capsys.readouterr().err.split())
    assert MODES["jax"].by_hand
