"""Special functions at poles, limits and far arguments."""

from __future__ import annotations

import math

import pytest
import torch

INF, NAN = float("inf"), float("nan")


def same(function, *tensors: torch.Tensor, rtol: float = 1e-9, atol: float = 1e-12) -> None:
    expected, result = function(*tensors), function(*(x.to("xla") for x in tensors)).cpu()
    torch.testing.assert_close(result, expected, rtol=rtol, atol=atol, equal_nan=True)


@pytest.mark.parametrize(
    "name", ["digamma", "special.airy_ai", "special.bessel_j0", "special.bessel_j1", "special.entr"]
)
def test_poles_and_limits(name):
    function = torch.digamma if name == "digamma" else getattr(torch.special, name.partition(".")[2])
    same(function, torch.tensor([0.0, -0.0, -1.0, 0.3, 1.0, -3.7, 4.0, 9.5, INF, -INF, NAN], dtype=torch.float64))


@pytest.mark.parametrize("name", ["bessel_y0", "bessel_y1", "modified_bessel_k0", "scaled_modified_bessel_k1"])
def test_functions_with_a_pole_at_zero(name):
    x = torch.tensor([0.0, -1.0, 1e-3, 1.5, 2.0, 4.9, 5.1, 30.0, NAN], dtype=torch.float64)
    same(getattr(torch.special, name), x)


@pytest.mark.parametrize("order", [0, 1, 2, 3])
def test_polygamma_below_zero(order):
    x = torch.tensor([-7.3, -20.5, -0.5, 0.25, 3.0, 40.0], dtype=torch.float64)
    same(lambda x: torch.polygamma(order, x), x)


@pytest.mark.parametrize("name", ["gammainc", "gammaincc"])
def test_incomplete_gamma_at_limits(name):
    values = torch.tensor([0.0, 0.5, 3.0, 19.0, INF, -1.0, NAN], dtype=torch.float64)
    same(getattr(torch.special, name), *(x.flatten() for x in torch.meshgrid(values, values, indexing="ij")))


def test_incomplete_gamma_of_large_numbers():
    """Near the median 1/2 + 1/(3 sqrt(2 pi a)); `jax.lax.igamma` gives 0.458 for 1e5 in float32."""
    a = torch.tensor([1e2, 1e5, 1e8, 1e12], dtype=torch.float64)
    expected = 0.5 + 1 / (3 * torch.sqrt(2 * math.pi * a))
    result = torch.special.gammainc(a.to("xla"), a.to("xla")).cpu()
    torch.testing.assert_close(result, expected, rtol=0, atol=2e-4)
    torch.testing.assert_close(result[1:], expected[1:], rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    "name",
    [
        "chebyshev_polynomial_t",
        "chebyshev_polynomial_u",
        "shifted_chebyshev_polynomial_v",
        "shifted_chebyshev_polynomial_w",
        "hermite_polynomial_h",
        "laguerre_polynomial_l",
        "legendre_polynomial_p",
    ],
)
def test_polynomials_of_all_degrees(name):
    x = torch.tensor([-1.5, -1.0, -0.4, 0.0, 0.3, 1.0, 2.0], dtype=torch.float64)
    degrees = torch.tensor([-2.0, 0.0, 1.0, 2.0, 5.0, 7.0, 9.0, 30.0], dtype=torch.float64)
    same(getattr(torch.special, name), *(y.flatten() for y in torch.meshgrid(x, degrees, indexing="ij")), rtol=1e-8)


def test_zeta_of_large_numbers():
    """Of the terms, those that are left are 0, and the factors before them infinite."""
    x, q = (
        y.reshape(-1)
        for y in torch.meshgrid(torch.tensor([60.0, 126, 127, 1e6]), torch.arange(1.0, 130), indexing="ij")
    )
    expected = torch.special.zeta(x, q)
    result = torch.special.zeta(x.to("xla"), q.to("xla")).cpu()
    torch.testing.assert_close(result, expected, rtol=2e-5, atol=1e-37)
