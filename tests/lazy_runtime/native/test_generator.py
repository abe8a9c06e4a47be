"""`torch.Generator("xla")`: the numbers that a generator of the CPU's with this seed gives, apart from all others."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, random_split

import lazy_runtime

DRAWS: dict[str, Callable[[torch.Generator], torch.Tensor]] = {
    "rand": lambda g: torch.rand(5, generator=g, device="xla"),
    "randn": lambda g: torch.randn(5, generator=g, device="xla"),
    "randint": lambda g: torch.randint(9, (5,), generator=g, device="xla"),
    "randperm": lambda g: torch.randperm(9, generator=g, device="xla"),
    "rand_like": lambda g: torch.rand_like(_values(), generator=g),
    "bernoulli": lambda g: torch.bernoulli(_values(), generator=g),
    "multinomial": lambda g: torch.multinomial(_values(), 3, generator=g),
    "normal": lambda g: torch.normal(_values(), _values(), generator=g),
    "poisson": lambda g: torch.poisson(_values() * 9, generator=g),
    "binomial": lambda g: torch.binomial(torch.full((5,), 9.0, device="xla"), _values(), generator=g),
    "uniform_": lambda g: _values().uniform_(generator=g),
    "normal_": lambda g: _values().normal_(generator=g),
    "random_": lambda g: _values().random_(generator=g),
    "exponential_": lambda g: _values().exponential_(generator=g),
    "geometric_": lambda g: _values().geometric_(0.1, generator=g),
    "cauchy_": lambda g: _values().cauchy_(generator=g),
    "log_normal_": lambda g: _values()[1:].log_normal_(generator=g),
    "init": lambda g: torch.nn.init.trunc_normal_(torch.empty(5, device="xla"), generator=g),
}


def _values() -> torch.Tensor:
    return torch.linspace(0.1, 0.9, 5, device="xla")


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("name", DRAWS)
def test_draws(name: str, eager: bool):
    lazy_runtime.experimental.eager_mode(eager)
    draw = DRAWS[name]
    generator = torch.Generator("xla").manual_seed(3)
    torchs = torch.get_rng_state()
    found = [draw(generator).cpu() for _ in range(2)]
    assert torch.equal(torchs, torch.get_rng_state())
    assert not torch.equal(*found)
    for other in (torch.Generator("xla").manual_seed(3), torch.Generator().manual_seed(3)):
        assert all(torch.equal(one, draw(other).cpu()) for one in found)


def test_a_parameter_that_is_drawn():
    parameter = torch.nn.Parameter(torch.zeros(3, device="xla"))
    generator = torch.Generator("xla").manual_seed(3)
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        parameter.exponential_(generator=generator)
    y = (parameter * 2).exponential_(generator=generator)
    y.sum().backward()
    assert parameter.grad is not None
    assert not parameter.grad.any()


def test_seeds_and_states():
    generator = torch.Generator(device="xla")
    assert generator.device == torch.device("xla", 0)
    assert generator.initial_seed() == torch.Generator().initial_seed()
    assert generator.manual_seed(7).initial_seed() == 7
    assert generator.seed() == generator.initial_seed()
    draw = DRAWS["rand"]
    state = generator.get_state()
    assert (state.device.type, state.dtype) == ("cpu", torch.uint8)
    copies = [copy.deepcopy(generator), pickle.loads(pickle.dumps(generator)), generator.clone_state()]
    first = draw(generator)
    generator.set_state(state)
    assert all(torch.equal(first, draw(each)) for each in (generator, *copies))
    with pytest.raises(RuntimeError, match="RNG state"):
        generator.set_state(torch.zeros(3, dtype=torch.uint8))
    with pytest.raises(RuntimeError, match=r"has no offset: use set_state"):
        generator.set_offset(1)


def test_what_it_does_not_follow():
    generator = torch.Generator("xla").manual_seed(3)
    torch.manual_seed(1)
    lazy_runtime.manual_seed(2)
    first = DRAWS["rand"](generator)
    with torch.random.fork_rng(device_type="xla"):
        assert torch.equal(first, DRAWS["rand"](generator.manual_seed(3)))


def test_samplers_where_xla_is_the_default_device():
    with torch.device("xla"):
        for device in ("cpu", "xla"):
            draws = []
            for _ in range(2):
                generator = torch.Generator(device).manual_seed(5)
                loader = DataLoader(torch.arange(8), shuffle=True, generator=generator, batch_size=4)
                parts = random_split(range(8), [3, 5], generator=generator)
                draws.append([[*torch.cat([*loader]).tolist()], [list(part) for part in parts]])
            assert draws[0] == draws[1]
            assert sorted(draws[0][0]) == list(range(8))


def test_devices_that_are_not_there():
    torch.ones(1, device="xla")
    count = torch.xla.device_count()
    with pytest.raises(RuntimeError, match=rf"there is no device xla:{count}: this process has {count}"):
        torch.Generator(f"xla:{count}")


@pytest.mark.parametrize("wrong", [lambda g: torch.rand(2, generator=g), lambda g: torch.ones(2).normal_(generator=g)])
def test_operators_on_the_cpu_refuse_it(wrong: Any):
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'xla'"):
        wrong(torch.Generator("xla"))


def test_before_the_device_is_used(forked_process):
    out = forked_process("""
        import torch
        generator = torch.Generator("xla").manual_seed(3)
        assert not torch.xla.is_initialized()
        print(torch.equal(torch.rand(2, generator=generator, device="xla"),
                          torch.rand(2, generator=torch.Generator().manual_seed(3), device="xla")))
    """)
    assert out.split() == ["True"]
