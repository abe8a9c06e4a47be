"""On every road two calls differ, a seed repeats them, and nothing is compiled for it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import lazy_runtime
from lazy_runtime.common import metrics
from lazy_runtime.platform import rng, xla_devices
from lazy_runtime.torch_xla.core import random_states
from lazy_runtime.torch_xla.experimental import eager_mode

ROADS = ["lazy", "eager", "compiled on xla", "compiled on the CPU"]


def draw(x):
    """One sample of everything; `x` holds numbers of (0, 1)."""
    e = torch.empty_like
    return (
        torch.rand_like(x), torch.randn_like(x), torch.randint_like(x, 100), torch.rand(64, device=x.device),
        torch.randn(64, device=x.device), torch.randint(100, (64,), device=x.device),
        torch.randperm(64, device=x.device), e(x).uniform_(1, 2), e(x).normal_(1, 2), e(x).exponential_(2),
        e(x).cauchy_(), e(x).log_normal_(), e(x).geometric_(0.01), torch.bernoulli(x), e(x).bernoulli_(0.3),
        e(x).bernoulli_(x), torch.normal(x, 1.0), torch.normal(0.0, x), torch.normal(x, x),
        torch.normal(0.0, 1.0, (64,), device=x.device), F.dropout(x), F.alpha_dropout(x, 0.5, True),
        F.rrelu(-x, training=True), torch.multinomial(x, 32), torch.multinomial(x, 32, replacement=True),
        torch.poisson(x * 20), torch.binomial(torch.full_like(x, 99), x), torch._standard_gamma(x),
        torch._sample_dirichlet(x), F.gumbel_softmax(x, dim=0),
    )  # fmt: skip


@pytest.fixture(params=ROADS)
def road(request):
    """(device, function → function that goes this road)."""
    name = request.param
    torch._dynamo.reset()
    eager_mode(name == "eager")
    device = "cpu" if "CPU" in name else "xla"
    yield (
        device,
        (lambda f: torch.compile(f, backend="openxla", fullgraph=True)) if "compiled" in name else (lambda f: f),
    )
    torch._dynamo.reset()


def probabilities(device):
    return torch.linspace(0.01, 0.99, 64).to(device)


def on_cpu(tensors):
    return [tensor.detach().cpu() for tensor in tensors]


def same(first, second):
    return [torch.equal(a, b) for a, b in zip(first, second, strict=True)]


def test_two_calls_differ_and_a_seed_repeats_them_without_compiling(road):
    device, travel = road
    call, x = travel(draw), probabilities(device)
    torch.manual_seed(7)
    first = on_cpu(call(x))
    compiled = metrics.value("UncachedCompile")
    assert compiled > 0
    second = on_cpu(call(x))
    assert not any(same(first, second))
    for _ in range(2):
        torch.manual_seed(7)
        assert all(same(first, on_cpu(call(x))))
        assert all(same(second, on_cpu(call(x))))
    torch.manual_seed(8)
    assert not any(same(first, on_cpu(call(x))))
    assert metrics.value("UncachedCompile") == compiled


def test_torchs_own_state_is_followed(road):
    device, travel = road
    call, x = travel(lambda x: (torch.rand_like(x), F.dropout(x))), probabilities(device)
    call(x)
    state = torch.get_rng_state()
    first = on_cpu(call(x))
    torch.set_rng_state(state)
    assert all(same(first, on_cpu(call(x))))
    torch.set_rng_state(state)
    with torch.random.fork_rng(devices=()):
        inside = on_cpu(call(x))
        torch.manual_seed(0)
        call(x)
    assert all(same(inside, on_cpu(call(x))))


def test_backward_uses_the_mask_of_forward(road):
    device, travel = road
    x = torch.full((1000,), 0.5, device=device, requires_grad=True)
    for drop in (F.dropout, lambda x: F.rrelu(-x, 0.1, 0.9, training=True), lambda x: x * torch.rand_like(x)):
        x.grad = None
        y = travel(lambda x, drop=drop: drop(torch.sin(x)))(x)
        y.sum().backward()
        torch.testing.assert_close(x.grad, y.detach() * torch.cos(x.detach()) / torch.sin(x.detach()))


@pytest.mark.parametrize("own_stream", [False, True])
def test_a_checkpoint_draws_the_same_again(road, own_stream):
    device, travel = road
    if own_stream:
        lazy_runtime.manual_seed(5)
    x = torch.full((1000,), 0.5, device=device, requires_grad=True)
    y = travel(lambda x: checkpoint(lambda x: F.dropout(torch.sin(x)) * 3, x, use_reentrant=False))(x)
    y.sum().backward()
    assert torch.equal(y.detach() == 0, x.grad == 0)
    assert 300 < int((y == 0).sum()) < 700


def test_a_checkpoint_that_is_not_to_preserve_the_state():
    x = torch.full((1000,), 0.5, device="xla", requires_grad=True)
    y = checkpoint(lambda x: F.dropout(torch.sin(x)) * 3, x, use_reentrant=False, preserve_rng_state=False)
    y.sum().backward()
    assert not torch.equal(y.detach() == 0, x.grad == 0)


def test_attention_with_dropout(road):
    """The result is linear in the values, with the weights that were kept."""
    device, travel = road
    q, k, v = (torch.randn(2, 3, 40, 8).to(device).requires_grad_() for _ in range(3))
    call = travel(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.5))
    first = call(q, k, v)
    first.sum().backward()
    torch.testing.assert_close((v.grad * v).sum(), first.sum(), rtol=1e-4, atol=1e-3)
    assert not torch.equal(first, call(q, k, v))
    plain = F.scaled_dot_product_attention(q, k, v)
    q, k, v, plain, first = on_cpu([q, k, v, plain, first])
    mean = sum(call(q.to(device), k.to(device), v.to(device)).cpu() for _ in range(64)) / 64
    deviation = (mean - plain).abs().mean() / (first - plain).abs().mean()
    assert float(deviation) == pytest.approx(1 / 8, rel=0.25)


def test_lazy_and_eager_mode_draw_the_same():
    x, drawn = probabilities("xla"), []
    for eager in (False, True):
        eager_mode(eager)
        torch.manual_seed(3)
        drawn.append(on_cpu(draw(x)))
    for lazy, eager in zip(*drawn, strict=True):
        torch.testing.assert_close(lazy, eager, rtol=1e-6, atol=1e-6)  # XLA may contract a product and a sum


@pytest.mark.parametrize("eager", [False, True])
def test_numbers_that_change_are_inputs_too(eager):
    eager_mode(eager)
    x = torch.ones(8).to("xla")

    def step(i):
        e = torch.empty_like
        samples = (
            e(x).normal_(i, i / 70), e(x).uniform_(-i, i), e(x).exponential_(i / 70), e(x).bernoulli_(1 / i),
            e(x).geometric_(1 / i), e(x).cauchy_(i, i), e(x).log_normal_(i / 70, i / 70), torch.normal(x, i / 70),
            torch.randint(-i, i, (8,), device="xla"), torch.randint_like(x, i), F.dropout(x, 1 / i),
        )  # fmt: skip
        lazy_runtime.sync()
        return samples

    step(3)
    compiled = metrics.value("UncachedCompile")
    for i in range(4, 10):
        step(i)
    assert metrics.value("UncachedCompile") == compiled


def test_generators():
    """A CPU generator gives the seeds, wherever its operator has it among the arguments."""
    x = probabilities("xla")

    def draw_from(g):
        return [
            torch.rand(64, device="xla", generator=g),
            torch.randn(64, device="xla", generator=g),
            torch.randint(100, (64,), device="xla", generator=g),
            torch.randperm(64, device="xla", generator=g),
            torch.normal(x, x, generator=g),
            torch.normal(x, 2.0, generator=g),
            torch.bernoulli(x, generator=g),
            x.clone().bernoulli_(0.5, generator=g),
            x.clone().uniform_(generator=g),
            x.clone().random_(generator=g),
            torch.multinomial(x, 20, generator=g),
            torch.poisson(x * 20, generator=g),
            torch.binomial(x * 0 + 99, x, generator=g),
            torch._standard_gamma(x, generator=g),
            torch._sample_dirichlet(x, generator=g),
            torch.rrelu(-x, training=True, generator=g),
            torch.nn.init.kaiming_uniform_(torch.empty(8, 8, device="xla"), generator=g),
        ]

    before = torch.get_rng_state()
    generator = torch.Generator().manual_seed(3)
    first, second, again = (on_cpu(draw_from(g)) for g in (generator, generator, torch.Generator().manual_seed(3)))
    assert all(same(first, again))
    assert not any(same(first, second))
    assert torch.equal(before, torch.get_rng_state())


def test_fork_rng_of_devices_with_streams_of_their_own():
    lazy_runtime.manual_seed(5)
    for devices in (["xla:0"], [0], None):
        with torch.random.fork_rng(devices, device_type="xla"):
            inside = torch.randn(3, device="xla")
            torch.xla.manual_seed_all(9)
        assert torch.equal(inside, torch.randn(3, device="xla"))


def sample():
    return torch.randn(3, device="xla").cpu()


def test_a_state_that_is_a_number():
    random_states.set_rng_state(42)
    assert random_states.get_rng_state() == random_states.get_rng_state("xla:0") == 42
    first = sample()
    middle = random_states.get_rng_state()
    second = sample()
    random_states.set_rng_state(42, "xla:0")
    assert torch.equal(first, sample())
    random_states.set_rng_state(middle)
    assert torch.equal(second, sample())
    lazy_runtime.manual_seed(42)
    assert torch.equal(first, sample())
    assert 0 <= middle < 2**63
    assert torch.tensor(middle).item() == middle  # as it is sent from process to process
    random_states.set_rng_state(-1)
    assert random_states.get_rng_state() == 2**63 - 1


def test_the_number_of_a_stream_that_followed_torch():
    torch.manual_seed(3)
    state = random_states.get_rng_state()
    first = [sample(), sample()]
    random_states.set_rng_state(state)
    assert all(same(first, [sample(), sample()]))
    torch.manual_seed(3)
    assert random_states.get_rng_state() != state  # the device goes on by itself
    xla_devices.get().random.follow_torch()
    assert random_states.get_rng_state() == state


def test_bad_states():
    with pytest.raises(RuntimeError, match="a state of 5056 bytes is none"):
        torch.xla.set_rng_state(torch.get_rng_state())
    with pytest.raises(RuntimeError, match="a state of 0 bytes is none"):
        torch.xla.set_rng_state(torch.zeros(0, dtype=torch.uint8))
    with pytest.raises(RuntimeError, match="xla:9 does not exist"):
        random_states.set_rng_state(1, "xla:9")


def test_seeds_of_a_devices_own_stream_use_all_64_bits():
    stream = rng.RandomStream()
    stream.seed(0)
    seeds = torch.tensor(stream.draw(1000))
    stream.seed(0)
    assert [stream.draw(1)[0] for _ in range(1000)] == seeds.tolist()
    assert seeds.unique().numel() == 1000
    for bit in range(64):
        assert 400 < int((seeds >> bit & 1).sum()) < 600
