"""Reparameterised gradients: how a sample moves with the parameter of its distribution, -(dF/da)(x) / f(x).

The approximations are those of torch (aten/src/ATen/native/Distributions.h), after M. Jankowiak and F. Obermeyer,
"Pathwise derivatives beyond the reparameterization trick", 2018: the gradient that a sample is given must be the one it
gets on any other device. As there, the arithmetic is float64.
"""

from __future__ import annotations

import jax.numpy as jnp
import torch
from jax.scipy.special import digamma

from ..probe import probed
from ..registry import op


def _broadcast(x, *others):
    shape = torch.broadcast_shapes(x.shape, *(other.shape for other in others))
    return torch.empty(shape, dtype=x.dtype, device="meta")


def _polynomial(x, coefficients):
    """Of the coefficients of 1, x, x², ..."""
    total = 0
    for coefficient in reversed(coefficients):
        total = total * x + coefficient
    return total


def _select(cases, otherwise):
    """The value of the first case whose condition holds."""
    for condition, value in reversed(cases):
        otherwise = jnp.where(condition, value, otherwise)
    return otherwise


# ---- gamma


@op("aten::_standard_gamma_grad", infer=probed("aten::_standard_gamma_grad", _broadcast))
def standard_gamma_grad(alpha, x):
    dtype = alpha.dtype
    alpha, x = jnp.broadcast_arrays(alpha.astype(jnp.float64), x.astype(jnp.float64))
    near = (0.9 * alpha <= x) & (x <= 1.1 * alpha)
    cases = [
        (x < 0.8, _gamma_taylor(alpha, x)),
        ((alpha > 8) & near, _gamma_near_the_mean(alpha, x)),
        (alpha > 8, _gamma_saddle_point(alpha, x)),
    ]
    return _select(cases, _gamma_rational(alpha, x)).astype(dtype)


def _gamma_taylor(alpha, x):
    """For small x."""
    numerator, denominator = jnp.ones_like(x), alpha
    first, second = 1 / denominator, 1 / (denominator * denominator)
    for i in range(1, 6):
        numerator = numerator * -x / i
        denominator = denominator + 1
        first = first + numerator / denominator
        second = second + numerator / (denominator * denominator)
    power = x**alpha
    density = x ** (alpha - 1) * jnp.exp(-x)
    slope = (jnp.log(x) - digamma(alpha)) * power * first - power * second
    result = -slope / density
    return jnp.where(jnp.isnan(result), 0, result)


def _gamma_near_the_mean(alpha, x):
    """For large alpha, where the saddle point expansion is 0/0."""
    prefactor = 1 + 24 * alpha * (1 + 12 * alpha)
    numerator = 1440 * alpha**2 + 6 * x * (53 - 120 * x) - 65 * x * x / alpha + alpha * (107 + 3600 * x)
    return prefactor * numerator / (1244160 * alpha**4)


def _gamma_saddle_point(alpha, x):
    """For large alpha: Rice's expansion."""
    denominator = jnp.sqrt(8 * alpha)
    log_ratio = jnp.log(x / alpha)
    second = denominator / (alpha - x)
    third = (x - alpha - alpha * log_ratio) ** -1.5
    both = jnp.where(x < alpha, second - third, second + third)
    first = log_ratio * both - jnp.sqrt(2 / alpha) * (alpha + x) / (alpha - x) ** 2
    stirling = 1 + 1 / (12 * alpha) * (1 + 1 / (24 * alpha))
    return -stirling * x * first / denominator


_GAMMA = (
    (0.16009398, -0.094634809, 0.025146376, -0.0030648343, 1, 0.32668115, 0.10406089, 0.0014179084),
    (0.53487893, 0.1298071, 0.065735949, -0.0015649758, 0.16639465, 0.020070113, -0.0035938915, -0.00058392623),
    (0.040121004, -0.0065914022, -0.0026286047, -0.0013441777,
     0.017050642, -0.0021309326, 0.00085092367, -1.5247877e-07),
)  # fmt: skip


def _gamma_rational(alpha, x):
    """For everything else: a rational function of the logarithms."""
    u, v = jnp.log(x / alpha), jnp.log(alpha)
    coefficients = [_polynomial(u, column) for column in zip(*_GAMMA, strict=True)]
    return jnp.exp(_polynomial(v, coefficients[:4]) / _polynomial(v, coefficients[4:]))


# ---- dirichlet


@op("aten::_dirichlet_grad", infer=probed("aten::_dirichlet_grad", _broadcast))
def dirichlet_grad(x, alpha, total):
    """Scaled by 1/(1 - x), with Beta(alpha, total - alpha) for the distribution of one component."""
    dtype = x.dtype
    x, alpha, total = jnp.broadcast_arrays(*(array.astype(jnp.float64) for array in (x, alpha, total)))
    beta = total - alpha
    boundary = total * x * (1 - x)
    cases = [
        ((x <= 0.5) & (boundary < 2.5), _beta_alpha_small(x, alpha, beta)),
        ((x >= 0.5) & (boundary < 0.75), -_beta_beta_small(1 - x, beta, alpha)),
        ((alpha > 6) & (beta > 6), _beta_saddle_point(x, alpha, beta)),
    ]
    return _select(cases, _beta_rational(x, alpha, total)).astype(dtype)


def _beta_alpha_small(x, alpha, beta):
    """With respect to alpha, for x near 0: Taylor series."""
    factor = digamma(alpha) - digamma(alpha + beta) - jnp.log(x)
    numerator = jnp.ones_like(x)
    series = numerator / alpha * (factor + 1 / alpha)
    for i in range(1, 11):
        numerator = numerator * (i - beta) * x / i
        denominator = alpha + i
        series = series + numerator / denominator * (factor + 1 / denominator)
    result = x * (1 - x) ** -beta * series
    return jnp.where(jnp.isnan(result), 0, result)


def _beta_beta_small(x, alpha, beta):
    """With respect to beta, for x near 0: Taylor series."""
    factor = digamma(alpha + beta) - digamma(beta)
    numerator, betas, slopes = jnp.ones_like(x), jnp.ones_like(x), jnp.zeros_like(x)
    series = factor / alpha
    for i in range(1, 9):
        numerator = numerator * -x / i
        slopes = slopes * (beta - i) + betas
        betas = betas * (beta - i)
        series = series + numerator / (alpha + i) * (slopes + factor * betas)
    result = -((1 - x) ** (1 - beta)) * series
    return jnp.where(jnp.isnan(result), 0, result)


def _beta_saddle_point(x, alpha, beta):
    """For large alpha and beta: Rice's expansion."""
    total = alpha + beta
    mean = alpha / total
    std = jnp.sqrt(alpha * beta / (total + 1)) / total
    near = (mean - 0.1 * std <= x) & (x <= mean + 0.1 * std)

    inner = 8 * (1 - x) * (135 * beta - 11)
    inner = (453 + 1620 * beta * (1 - x) - 455 * x) * beta + alpha * inner
    inner = 3 * (59 + 180 * beta - 90 * x) * beta**2 + alpha * inner
    inner = (43 + 20 * (16 + 27 * beta) * x) * beta**3 + alpha * inner
    at_mean = 47 * x * beta**4 + alpha * inner
    numerator = (1 + 12 * alpha) * (1 + 12 * beta) / (total * total)
    at_mean = numerator / (1 - x) * at_mean / (12960 * alpha**3 * beta**2 * (1 + 12 * total))

    prefactor = -x / jnp.sqrt(2 * alpha * beta / total)
    stirling = _stirling(alpha) * _stirling(beta) / _stirling(total)
    distance = alpha * (x - 1) + beta * x
    first = 2 * alpha**2 * (x - 1) + alpha * beta * (x - 1) - x * beta**2
    first = first / (jnp.sqrt(2 * alpha / beta) * total**1.5 * distance * distance)
    second = 0.5 * jnp.log(alpha / (total * x))
    third = jnp.sqrt(8 * alpha * beta / total) / distance
    fourth = beta * jnp.log(beta / (total * (1 - x))) + alpha * jnp.log(alpha / (total * x))
    fourth = jnp.where(x < mean, 1, -1) * fourth**-1.5
    return jnp.where(near, at_mean, stirling * prefactor * (first + second * (third + fourth)))


def _stirling(x):
    return 1 + 1 / (12 * x) + 1 / (288 * x * x)


_BETA_NUMERATOR = (
    ((1.003668233, -0.01061107488, -0.0657888334, 0.01201642863),
     (0.6336835991, -0.3557432599, 0.05486251648, -0.001465281033),
     (-0.03276231906, 0.004474107445, 0.002429354597, -0.0001557569013)),
    ((0.221950385, -0.3187676331, 0.01799915743, 0.01074823814),
     (-0.2951249643, 0.06219954479, 0.01535556598, 0.001550077057),
     (0.02155310298, 0.004170831599, 0.001292462449, 6.976601077e-05)),
    ((-0.05980841433, 0.008441916499, 0.01085618172, 0.002319392565),
     (0.02911413504, 0.01400243777, -0.002721828457, 0.000751041181),
     (0.005900514878, -0.001936558688, -9.495446725e-06, 5.385558597e-05)),
)  # fmt: skip
_BETA_DENOMINATOR = (
    ((1, -0.02924021934, -0.04438342661, 0.007285809825),
     (0.6357567472, -0.3473456711, 0.05454656494, -0.002407477521),
     (-0.03301322327, 0.004845219414, 0.00231480583, -0.0002307248149)),
    ((0.5925320577, -0.1757678135, 0.01505928619, 0.000564515273),
     (0.1014815858, -0.06589186703, 0.01272886114, -0.0007316646956),
     (-0.007258481865, 0.001096195486, 0.0003934994223, -4.12701925e-05)),
    ((0.06469649321, -0.0236701437, 0.002902096474, -5.896963079e-05),
     (0.001925008108, -0.002869809258, 0.0008000589141, -6.063713228e-05),
     (-0.0003477407336, 6.959756487e-05, 1.097287507e-05, -1.650964693e-06)),
)  # fmt: skip


def _beta_rational(x, alpha, total):
    """For everything else: an analytic approximation times a rational function of the logarithms."""
    u = jnp.log(x)
    a = jnp.log(alpha) - u
    b = jnp.log(total) - a

    def of_logarithms(table):
        return _polynomial(u, [_polynomial(a, [_polynomial(b, row) for row in rows]) for rows in table])

    approximation = x * (digamma(total) - digamma(alpha)) / (total - alpha)
    return of_logarithms(_BETA_NUMERATOR) / of_logarithms(_BETA_DENOMINATOR) * approximation
