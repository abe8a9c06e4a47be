"""Random numbers repeat where torch's do."""

from __future__ import annotations

import pytest
import torch

import lazy_runtime
from lazy_runtime.common import metrics


def draw():
    return torch.randn(3, device="xla").cpu()


def test_two_calls_differ_and_a_seed_repeats_them():
    torch.manual_seed(3)
    first = [draw(), draw()]
    torch.manual_seed(3)
    assert all(torch.equal(x, draw()) for x in first)
    assert not torch.equal(*first)
    torch.manual_seed(3)
    assert torch.equal(first[0], draw())
    torch.manual_seed(4)
    assert not torch.equal(first[0], draw())
    assert metrics.value("UncachedCompile") <= 1  # the seed is an input of the graph


def test_lazy_runtime_manual_seed_has_a_stream_of_its_own():
    lazy_runtime.manual_seed(5)
    first = draw()
    lazy_runtime.manual_seed(5)
    torch.manual_seed(1)
    torch.rand(3)
    assert torch.equal(first, draw())


def test_torchs_rng_state_reaches_the_device():
    state = torch.get_rng_state()
    first = draw()
    torch.set_rng_state(state)
    assert torch.equal(first, draw())


@pytest.mark.parametrize("own_stream", [False, True])
def test_fork_rng(own_stream):
    if own_stream:
        lazy_runtime.manual_seed(5)
    with torch.random.fork_rng(device_type="xla"):
        inside = draw()
        lazy_runtime.manual_seed(9)
    assert torch.equal(inside, draw())


def test_a_generator_passed_by_the_user():
    generator = torch.Generator().manual_seed(3)
    first = torch.rand(3, device="xla", generator=generator)
    assert not torch.equal(first, torch.rand(3, device="xla", generator=generator))
    compiles = metrics.value("UncachedCompile")
    assert torch.equal(first, torch.rand(3, device="xla", generator=torch.Generator().manual_seed(3)))
    assert metrics.value("UncachedCompile") - compiles <= 1


def test_a_bad_state():
    with pytest.raises(TypeError, match="uint8 CPU tensor"):
        torch.xla.set_rng_state(torch.zeros(3))
