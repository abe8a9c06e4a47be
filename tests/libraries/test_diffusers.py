"""diffusers, unmodified: its pipelines end a step by `xm.mark_step`, and its newest attention imports torch_xla's."""

from __future__ import annotations

import pytest

from tests.libraries.running import needs, on_cpu, on_xla

pytestmark = [
    pytest.mark.long,
    needs("diffusers", "requests"),
]


def test_stable_diffusion(tmp_path):
    """All denoising steps are one program, whatever their number, and each is one execution."""
    cpu = on_cpu("stable_diffusion.py", "cpu", folder=tmp_path)
    xla = on_xla("stable_diffusion.py", "xla", folder=tmp_path)
    assert (cpu["device"], xla.found["device"]) == ("cpu", "xla")
    for ours, theirs in zip(xla.found["images"], cpu["images"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)  # float32 through 12 steps and a decoder
    assert xla.per_step(4, 6) == [(1, 0)] * 2  # of 6 steps, after the first ones
    assert xla.per_step(10, 20) == [(1, 0)] * 10  # of 12 steps


def test_ddpm_training(tmp_path):
    cpu = on_cpu("ddpm_training.py", "cpu", folder=tmp_path)
    xla = on_xla("ddpm_training.py", "xla", folder=tmp_path)
    assert xla.found["losses"] == pytest.approx(cpu["losses"], rel=1e-5)
    assert xla.found["weights"] == pytest.approx(cpu["weights"], rel=1e-6)
    assert xla.per_step(2, 8) == [(1, 0)] * 6
