"""What random operators with a density, and the true and false ones, draw, against the exact distributions. Seeded, so
that no test can flake; a distribution that is off by half a percent anywhere always fails.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from scipy import stats

from tests.lazy_runtime.goodness import FLOATS, NARROW, REJECTED, N, continuous, empty, full, numbers, rare, table


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(20240229)


# ---- uniform, normal and their kin


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform(dtype):
    x = empty(dtype=dtype).uniform_()
    continuous(x, stats.uniform())
    steps = 2.0 ** (24 if dtype == torch.float32 else 53)
    assert torch.equal(x.cpu() * steps, (x.cpu() * steps).round())
    continuous(empty(dtype=dtype).uniform_(-3, 7), stats.uniform(-3, 10))
    assert empty(dtype=dtype).uniform_(2.5, 2.5).unique().tolist() == [2.5]
    parts = torch.view_as_real(torch.rand(N, dtype=torch.complex64, device="xla"))
    continuous(parts[..., 0], stats.uniform())
    continuous(parts[..., 1], stats.uniform())


@pytest.mark.parametrize("dtype", NARROW)
def test_uniform_of_16_bits_is_a_rounded_float32_without_the_upper_bound(dtype):
    exact = (torch.arange(2**24, dtype=torch.float32) * 2.0**-24).to(dtype)
    exact[exact == 1] = 0
    x = torch.rand(N, dtype=dtype, device="xla").cpu()
    found, expected = (torch.bincount(y.view(torch.int16).int(), minlength=2**15).double() for y in (x, exact))
    assert not found[expected == 0].any()
    table(found.numpy(), expected.numpy() * N / 2**24)
    x = empty(dtype=dtype).uniform_(-2, 4)
    assert -2 <= x.min() < x.max() < 4


@pytest.mark.parametrize("dtype", [*FLOATS, *NARROW])
def test_normal(dtype):
    count = N if dtype in FLOATS else 20_000  # so many do not show the rounding to 16 bits
    continuous(torch.randn(count, dtype=dtype, device="xla"), stats.norm())
    continuous(empty(count, dtype).normal_(3, 0.5), stats.norm(3, 0.5))
    mean, std = full(-1.0, dtype, count), full(2.0, dtype, count)
    for x in torch.normal(mean, std), torch.normal(mean, 2.0), torch.normal(-1.0, std):
        assert x.dtype == dtype
        continuous(x, stats.norm(-1, 2))
    continuous(torch.normal(-1.0, 2.0, (count,), dtype=dtype, device="xla"), stats.norm(-1, 2))


def test_normal_of_complex_numbers_shares_the_variance():
    parts = torch.view_as_real(torch.randn(N, dtype=torch.complex64, device="xla"))
    for part in parts.unbind(-1):
        continuous(part, stats.norm(0, math.sqrt(0.5)))
    assert stats.pearsonr(numbers(parts[..., 0]), numbers(parts[..., 1])).pvalue > REJECTED


def test_the_tails_of_normal():
    x = torch.randn(20 * N, device="xla")
    for bound in 3, 4, 4.5, 5:
        rare((x > bound).sum(), 20 * N, stats.norm.sf(bound))
        rare((x < -bound).sum(), 20 * N, stats.norm.sf(bound))
    x = torch.randn(20 * N, dtype=torch.float64, device="xla")
    rare((x.abs() > 5).sum(), 20 * N, 2 * stats.norm.sf(5))


@pytest.mark.parametrize("dtype", [*FLOATS, *NARROW])
def test_exponential(dtype):
    count = N if dtype in FLOATS else 20_000
    continuous(empty(count, dtype).exponential_(), stats.expon())
    continuous(empty(count, dtype).exponential_(0.25), stats.expon(scale=4))
    assert empty(3, dtype).exponential_(math.inf).tolist() == [0, 0, 0]


def test_the_ends_of_exponential():
    x = empty(20 * N).exponential_()
    assert x.min() > 0
    rare((x < 1e-5).sum(), 20 * N, 1e-5)
    rare((x > 11).sum(), 20 * N, math.exp(-11))


@pytest.mark.parametrize("dtype", [*FLOATS, *NARROW])
def test_cauchy_and_log_normal(dtype):
    count = N if dtype in FLOATS else 20_000
    continuous(empty(count, dtype).cauchy_(2, 3), stats.cauchy(2, 3))
    continuous(empty(count, dtype).log_normal_(0.5, 0.75), stats.lognorm(0.75, scale=math.exp(0.5)))


def test_the_tails_of_cauchy():
    x = empty(20 * N).cauchy_().abs()
    assert x.isfinite().all()
    rare((x > 1e4).sum(), 20 * N, 2 * stats.cauchy.sf(1e4))
    rare((x < 1e-4).sum(), 20 * N, 2 * stats.cauchy.cdf(1e-4) - 1)


@pytest.mark.parametrize("dtype", FLOATS)
def test_slopes_of_rrelu(dtype):
    x = full(-2.0, dtype).requires_grad_()
    y = F.rrelu(x, 0.1, 0.7, training=True)
    y.sum().backward()
    continuous(x.grad, stats.uniform(0.1, 0.6))
    assert torch.equal(y.detach(), x.grad * x.detach())
    x = torch.tensor([-1.0, 0.0, 2.0, math.nan], dtype=dtype, device="xla")
    y, noise = torch.ops.aten.rrelu_with_noise_functional(x, torch.zeros_like(x), 0.1, 0.7, True)
    assert noise[2:].tolist() == [1, 1]
    assert (y[2].item(), y[3].isnan().item()) == (2, True)
    assert F.rrelu(x, 0.25, 0.75).cpu()[:3].tolist() == [-0.5, 0.0, 2.0]


# ---- true and false


@pytest.mark.parametrize("p", [1e-5, 0.1, 0.5, 1 - 1e-5])
@pytest.mark.parametrize("dtype", [*FLOATS, torch.bfloat16])
def test_bernoulli(p, dtype):
    of_tensor = full(p, dtype, 10 * N)
    exact = of_tensor[0].double().item()
    rare(torch.bernoulli(of_tensor).sum(dtype=torch.float64), 10 * N, exact)
    rare(empty(10 * N, torch.int64).bernoulli_(of_tensor).sum(), 10 * N, exact)
    rare(empty(10 * N, dtype).bernoulli_(p).sum(dtype=torch.float64), 10 * N, p)


def test_certain_and_impossible():
    p = torch.tensor([0.0, 1.0]).repeat(N).to("xla")
    for dtype in (*FLOATS, *NARROW):
        assert torch.equal(torch.bernoulli(p.to(dtype)), p.to(dtype))
    assert empty(10 * N).bernoulli_(1.0).all()
    assert not empty(10 * N).bernoulli_(0.0).any()


def test_alpha_dropout_keeps_mean_and_variance():
    y = F.alpha_dropout(torch.randn(10 * N, device="xla"), 0.3, training=True)
    assert y.mean().item() == pytest.approx(0, abs=0.01)
    assert y.std().item() == pytest.approx(1, abs=0.01)
    kept = y != y.mode().values
    rare(kept.sum(), 10 * N, 0.7)


def test_feature_dropout_takes_whole_channels():
    x = torch.ones(100, 200, 3, 3, device="xla")
    for drop, value in ((F.dropout2d, 0.0), (F.feature_alpha_dropout, None)):
        y = drop(x, 0.4, training=True).reshape(20_000, 9)
        assert torch.equal(y.amin(1), y.amax(1))
        dropped = y[:, 0] == (y.min() if value is None else value)
        rare(dropped.sum(), 20_000, 0.4)
