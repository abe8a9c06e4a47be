"""`transformers.Trainer`, unmodified: losses as on the CPU, executions per step, checkpoints that go on bit for bit."""

from __future__ import annotations

import math

import pytest

from tests.libraries.running import needs, on_cpu, on_xla

pytestmark = needs("accelerate")

#: One of the models in `make test`, all in `make test-libraries`.
MODELS = [pytest.param("bert", marks=pytest.mark.long), pytest.param("gpt2", marks=pytest.mark.long), "llama"]

# float32 in another order of additions, over a few steps of training
CLOSE = {"rel": 2e-5, "abs": 1e-6}


def arguments(**options):
    return [f"{name}={value!r}" for name, value in options.items()]


def both(tmp_path, model, cpu=None, **options):
    """A program of Trainer's on xla, and its results on the CPU."""
    xla = on_xla("trainer.py", model, "xla", *arguments(**options), folder=tmp_path)
    host = {**options, "use_cpu": True, **(cpu or {})}
    return xla, on_cpu("trainer.py", model, "cpu", *arguments(**host), folder=tmp_path)


def compare(xla, cpu, **tolerance):
    assert (xla["device"], cpu["device"]) == ("xla", "cpu")
    for name in ("losses", "norms", "rates"):
        assert len(xla[name]) == len(cpu[name]) > 0
        assert xla[name] == pytest.approx(cpu[name], **(tolerance or CLOSE)), name
    assert xla["dtypes"] == cpu["dtypes"] == ["torch.float32"]
    if "eval_loss" in cpu:
        assert xla["eval_loss"] == pytest.approx(cpu["eval_loss"], **(tolerance or CLOSE))


@pytest.mark.parametrize("model", MODELS)
def test_losses(model, tmp_path):
    xla, cpu = both(tmp_path, model, max_steps=6, warmup_steps=2, lr_scheduler_type="cosine", max_grad_norm=0.5)
    compare(xla.found, cpu)
    assert len(xla.found["losses"]) == 6


@pytest.mark.parametrize(
    ("model", "options"),
    [
        pytest.param("bert", {"mask": False}, marks=pytest.mark.long),
        pytest.param("gpt2", {"attention": "eager"}, marks=pytest.mark.long),
        ("llama", {"attention": "eager"}),
    ],
)
def test_a_step_is_one_execution(model, options, tmp_path):
    options = arguments(max_steps=8, logging_steps=100, evaluate=False, **options)
    assert on_xla("trainer.py", model, "xla", *options, folder=tmp_path).per_step(4, 8) == [(1, 0)] * 4


@pytest.mark.long
def test_a_mask_for_sdpa_costs_a_read(tmp_path):
    """transformers asks in each step whether the mask masks anything, to leave it out for torch's attention."""
    options = arguments(max_steps=8, logging_steps=100, evaluate=False)
    assert on_xla("trainer.py", "llama", "xla", *options, folder=tmp_path).per_step(4, 8) == [(2, 0)] * 4


@pytest.mark.parametrize("model", MODELS)
def test_resuming_is_bit_for_bit(model, tmp_path):
    options = arguments(max_steps=5, save_steps=3, dropout=0.1, evaluate=False)
    found = on_xla("trainer.py", model, "xla", *options, folder=tmp_path).found
    assert found["different"] == []
    assert found["resumed"] == found["losses"][-1]


@pytest.mark.long
def test_a_compiled_model(tmp_path):
    options = {"mask": False, "attention": "eager", "backend": "openxla"}
    xla, cpu = both(tmp_path, "llama", cpu={"backend": None}, max_steps=4, **options)
    compare(xla.found, cpu)
    steps = arguments(max_steps=8, logging_steps=100, evaluate=False, **options)
    assert on_xla("trainer.py", "llama", "steps", *steps, folder=tmp_path).per_step(4, 8) == [(1, 0)] * 4


@pytest.mark.long
def test_accumulation(tmp_path):
    xla, cpu = both(tmp_path, "llama", max_steps=4, gradient_accumulation_steps=2, mask=False)
    compare(xla.found, cpu)


@pytest.mark.long
def test_optimizers_of_one_kernel(tmp_path):
    fused, cpu = both(tmp_path, "gpt2", max_steps=4, optim="adamw_torch_fused", weight_decay=0.1)
    compare(fused.found, cpu)
    options = arguments(max_steps=4, optim="adamw_torch_xla", weight_decay=0.1)
    compare(on_xla("trainer.py", "gpt2", "syncfree", *options, folder=tmp_path).found, cpu)


@pytest.mark.long
def test_gradient_checkpointing(tmp_path):
    xla, cpu = both(tmp_path, "llama", cpu={"gradient_checkpointing": False}, max_steps=4, gradient_checkpointing=True)
    compare(xla.found, cpu)


@pytest.mark.long
def test_bfloat16(tmp_path):
    """Autocast: weights in float32, and results of fewer bits, which are near those of the CPU in bfloat16."""
    xla, cpu = both(tmp_path, "llama", max_steps=4, bf16=True)
    compare(xla.found, cpu, rel=2e-2)
    whole = on_xla("trainer.py", "llama", "whole", *arguments(max_steps=4), folder=tmp_path).found
    assert max(abs(a - b) for a, b in zip(whole["norms"], xla.found["norms"], strict=True)) > 1e-5
    assert all(map(math.isfinite, xla.found["losses"]))
