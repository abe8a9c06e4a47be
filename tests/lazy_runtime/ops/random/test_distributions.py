"""`torch.distributions` on xla tensors: samples against the exact distributions, gradients of `rsample` against the
CPU's for the same sample, and `torch.nn.init`.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributions as D
import torch.nn.functional as F
from scipy import stats

N = 20_000
REJECTED = 1e-4


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(20240229)


def on(device, *values):
    return [torch.tensor(value, device=device) for value in values]


def follows(x, distribution):
    assert stats.kstest(x.detach().cpu().double().flatten().numpy(), distribution.cdf).pvalue > REJECTED


CONTINUOUS = {
    "Beta": (D.Beta, (0.5, 2.0), stats.beta(0.5, 2)),
    "Cauchy": (D.Cauchy, (1.0, 2.0), stats.cauchy(1, 2)),
    "Chi2": (D.Chi2, (3.0,), stats.chi2(3)),
    "Exponential": (D.Exponential, (0.5,), stats.expon(scale=2)),
    "FisherSnedecor": (D.FisherSnedecor, (5.0, 7.0), stats.f(5, 7)),
    "Gamma": (D.Gamma, (2.5, 0.5), stats.gamma(2.5, scale=2)),
    "Gumbel": (D.Gumbel, (1.0, 2.0), stats.gumbel_r(1, 2)),
    "HalfCauchy": (D.HalfCauchy, (2.0,), stats.halfcauchy(0, 2)),
    "HalfNormal": (D.HalfNormal, (2.0,), stats.halfnorm(0, 2)),
    "InverseGamma": (D.InverseGamma, (3.0, 2.0), stats.invgamma(3, scale=2)),
    "Laplace": (D.Laplace, (1.0, 2.0), stats.laplace(1, 2)),
    "LogNormal": (D.LogNormal, (0.5, 0.7), stats.lognorm(0.7, scale=math.exp(0.5))),
    "Normal": (D.Normal, (1.0, 2.0), stats.norm(1, 2)),
    "Pareto": (D.Pareto, (1.5, 3.0), stats.pareto(3, scale=1.5)),
    "StudentT": (D.StudentT, (4.0, 1.0, 2.0), stats.t(4, 1, 2)),
    "Uniform": (D.Uniform, (-1.0, 3.0), stats.uniform(-1, 4)),
    "VonMises": (D.VonMises, (0.0, 2.0), stats.vonmises(2)),
    "Weibull": (D.Weibull, (2.0, 1.5), stats.weibull_min(1.5, scale=2)),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_samples(name):
    family, parameters, exact = CONTINUOUS[name]
    distribution = family(*on("xla", *parameters))
    x = distribution.sample((N,))
    assert x.device.type == "xla"
    follows(x, exact)
    here = family(*on("cpu", *parameters)).log_prob(x.cpu())
    torch.testing.assert_close(distribution.log_prob(x).cpu(), here, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["Exponential", "Gumbel", "Laplace", "LogNormal", "Normal", "Uniform", "Weibull"])
def test_gradients_of_samples_that_are_a_function_of_noise(name):
    """Such a sample is noise transformed, and the inverse of the transform gives the noise back."""
    family, parameters, _ = CONTINUOUS[name]
    there = [p.double().requires_grad_() for p in on("xla", *parameters)]
    x = family(*there).rsample((100,))
    x.sum().backward()
    # x = F⁻¹(u; parameters): dx/dp = -(dF/dp) / f, and the CPU differentiates F
    here = [p.double().requires_grad_() for p in on("cpu", *parameters)]
    point, distribution = x.detach().cpu(), family(*here)
    density = distribution.log_prob(point).exp().detach()
    (-distribution.cdf(point) / density).sum().backward()
    for got, wanted in zip(there, here, strict=True):
        torch.testing.assert_close(got.grad.cpu(), wanted.grad, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_of_gamma_samples(dtype):
    concentration = torch.logspace(-3, 4, 50, dtype=dtype).repeat(20)
    rate = torch.linspace(0.5, 2, 1000, dtype=dtype)
    a, b = concentration.to("xla").requires_grad_(), rate.to("xla").requires_grad_()
    x = D.Gamma(a, b).rsample()
    x.sum().backward()
    value = (x.detach().cpu() * rate).clamp(min=torch.finfo(dtype).tiny)
    expected = torch._standard_gamma_grad(concentration, value) / rate
    # the standard sample is recovered from x with a rounding, and the slope follows the sample
    bound = 1e-4 if dtype == torch.float32 else 1e-9
    torch.testing.assert_close(a.grad.cpu(), expected, rtol=bound, atol=bound)
    torch.testing.assert_close(b.grad.cpu(), -(x / b).detach().cpu(), rtol=bound, atol=0)


#: Torch's approximations are three to five digits right; that xla has the same ones shows in all digits but those that
#: cancel in the saddle point expansions, which are computed in float64 on both sides.
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-6), (torch.float64, 1e-8)])
def test_gamma_gradients_everywhere(dtype, bound):
    alpha = torch.logspace(-3, 5, 200, dtype=dtype)[:, None]
    quantiles = torch.tensor([1e-6, 0.01, 0.3, 0.5, 0.7, 0.99, 1 - 1e-6], dtype=torch.float64)
    x = torch.from_numpy(stats.gamma.ppf(quantiles.numpy(), alpha.double().numpy())).to(dtype)
    alpha = alpha.expand_as(x).contiguous()
    result = torch._standard_gamma_grad(alpha.to("xla"), x.to("xla")).cpu()
    torch.testing.assert_close(result, torch._standard_gamma_grad(alpha, x), rtol=bound, atol=bound)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-3), (torch.float64, 1e-8)])
def test_dirichlet_gradients_everywhere(dtype, bound):
    """In float32 torch sums the series around 0 and 1 in float32, whose terms alternate; here they are float64."""
    alpha = torch.logspace(-2, 3, 40, dtype=dtype)
    alpha, beta = torch.meshgrid(alpha, alpha, indexing="ij")
    levels = torch.tensor([0.001, 0.1, 0.5, 0.9, 0.999], dtype=torch.float64)[:, None, None]
    x = torch.from_numpy(stats.beta.ppf(levels.numpy(), alpha.double().numpy(), beta.double().numpy())).to(dtype)
    x = x.clamp(torch.finfo(dtype).tiny, 1 - torch.finfo(dtype).eps)
    arguments = [t.contiguous() for t in torch.broadcast_tensors(x, alpha, alpha + beta)]
    result = torch._dirichlet_grad(*(t.to("xla") for t in arguments)).cpu()
    torch.testing.assert_close(result, torch._dirichlet_grad(*arguments), rtol=bound, atol=bound)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo's, of torch's own code
@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_of_dirichlet_samples(compiled):
    def sample(c):
        return D.Dirichlet(c, validate_args=False).rsample((50,))

    concentration = torch.tensor([0.3, 1.0, 8.0, 20.0], dtype=torch.float64)
    c = concentration.to("xla").requires_grad_()
    torch._dynamo.reset()
    x = (torch.compile(sample, backend="openxla") if compiled else sample)(c)
    weights = torch.arange(4.0, dtype=torch.float64)
    (x * weights.to("xla")).sum().backward()
    point = x.detach().cpu()
    alpha = concentration.expand_as(point)
    slope = torch._dirichlet_grad(point, alpha.contiguous(), alpha.sum(-1, True).expand_as(alpha).contiguous())
    expected = (slope * (weights - (point * weights).sum(-1, True))).sum(0)
    torch.testing.assert_close(c.grad.cpu(), expected, rtol=1e-7, atol=1e-7)


DISCRETE = {
    "Bernoulli": (lambda p: D.Bernoulli(p), (0.3,), 0.3),
    "Binomial": (lambda p: D.Binomial(10, p), (0.3,), 3.0),
    "Categorical": (D.Categorical, ([0.2, 0.3, 0.5],), 1.3),
    "Geometric": (D.Geometric, (0.25,), 3.0),
    "NegativeBinomial": (lambda p: D.NegativeBinomial(5, p), (0.4,), 10 / 3),
    "Poisson": (D.Poisson, (4.0,), 4.0),
    "ContinuousBernoulli": (D.ContinuousBernoulli, (0.3,), None),
    "RelaxedBernoulli": (lambda t, p: D.RelaxedBernoulli(t, p), (0.5, 0.3), 0.35),
}


@pytest.mark.parametrize("name", DISCRETE)
def test_means(name):
    make, parameters, mean = DISCRETE[name]
    distribution = make(*on("xla", *parameters))
    x = distribution.sample((N,)).double()
    if mean is None or name != "RelaxedBernoulli":
        mean = distribution.mean.item() if mean is None else mean
        assert x.mean().item() == pytest.approx(mean, abs=5 * x.std().item() / math.sqrt(N))
    else:
        rare = (x > 0.5).double().mean().item()
        assert rare == pytest.approx(0.3, abs=5 * 0.46 / math.sqrt(N))


def test_several_components():
    p = torch.tensor([0.2, 0.3, 0.5], device="xla")
    hot = D.OneHotCategorical(p).sample((N,))
    assert (hot.sum(1) == 1).all()
    torch.testing.assert_close(hot.mean(0), p, rtol=0, atol=0.02)
    counts = D.Multinomial(10, p).sample((1000,))
    assert (counts.sum(1) == 10).all()
    torch.testing.assert_close(counts.mean(0), 10 * p, rtol=0, atol=0.25)
    relaxed = D.RelaxedOneHotCategorical(torch.tensor(0.5, device="xla"), p).rsample((N,))
    torch.testing.assert_close(relaxed.sum(1).cpu(), torch.ones(N))
    torch.testing.assert_close(F.one_hot(relaxed.argmax(1), 3).float().mean(0), p, rtol=0, atol=0.02)


@pytest.mark.filterwarnings("ignore:Singular sample detected")  # of Wishart, on the CPU too
def test_matrices():
    covariance = torch.tensor([[2.0, 0.6], [0.6, 1.0]], device="xla")
    mean = torch.tensor([1.0, -1.0], device="xla")
    factor, diagonal = on("xla", [[1.0], [0.6]], [1.0, 0.64])
    for distribution in (
        D.MultivariateNormal(mean, covariance),
        D.LowRankMultivariateNormal(mean, factor, diagonal),
    ):
        x = distribution.rsample((N,)).cpu()
        torch.testing.assert_close(x.mean(0), mean.cpu(), rtol=0, atol=0.06)
        torch.testing.assert_close(x.T.cov(), covariance.cpu(), rtol=0, atol=0.1)
    wishart = D.Wishart(torch.tensor(5.0, device="xla"), covariance).rsample((N,))
    torch.testing.assert_close(wishart.mean(0), 5 * covariance, rtol=0.05, atol=0.05)
    factor = D.LKJCholesky(3, torch.tensor(1.0, device="xla")).sample((1000,))
    torch.testing.assert_close((factor**2).sum(-1), torch.ones(1000, 3, device="xla"))
    follows((factor[:, 1, 0] + 1) / 2, stats.beta(1.5, 1.5))


def test_initialisers():
    init, w = torch.nn.init, torch.empty(200, 100, device="xla")
    follows(init.uniform_(w, -2, 3), stats.uniform(-2, 5))
    follows(init.normal_(w, 1, 2), stats.norm(1, 2))
    follows(init.trunc_normal_(w, 0, 1, -1, 2), stats.truncnorm(-1, 2))
    bound = math.sqrt(6 / 300)
    follows(init.xavier_uniform_(w), stats.uniform(-bound, 2 * bound))
    follows(init.xavier_normal_(w), stats.norm(0, math.sqrt(2 / 300)))
    bound = math.sqrt(6 / 100)
    follows(init.kaiming_uniform_(w), stats.uniform(-bound, 2 * bound))
    follows(init.kaiming_normal_(w), stats.norm(0, math.sqrt(2 / 100)))
    init.orthogonal_(w)
    torch.testing.assert_close((w.T @ w).cpu(), torch.eye(100), rtol=0, atol=1e-5)
    w = torch.empty(8, 4, device="xla")
    init.sparse_(w, 0.25)
    assert ((w == 0).sum(0) == 2).all()
    layer = torch.nn.Linear(100, 200, device="xla")
    follows(layer.weight, stats.uniform(-0.1, 0.2))


def test_random_pooling_regions():
    x = torch.arange(400.0, device="xla").reshape(1, 1, 20, 20)
    torch.manual_seed(1)
    first, second = (F.fractional_max_pool2d(x, 2, output_size=(9, 9)) for _ in range(2))
    torch.manual_seed(1)
    assert torch.equal(first, F.fractional_max_pool2d(x, 2, output_size=(9, 9)))
    assert not torch.equal(first, second)
    samples = torch.tensor([[[0.3, 0.8]]])
    on_xla = F.fractional_max_pool2d(x, 2, output_size=(9, 9), _random_samples=samples.to("xla"))
    assert torch.equal(on_xla.cpu(), F.fractional_max_pool2d(x.cpu(), 2, output_size=(9, 9), _random_samples=samples))
