"""Bessel functions of orders 0 and 1, spherical and modified ones, and Airy's.

Rational approximations and Chebyshev series of the Cephes library (S. L. Moshier, https://www.netlib.org/cephes), which
torch's kernels use as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import jax.scipy.special as scipy

from ..registry import Promotion, pointwise

INT_TO_FLOAT = Promotion.INT_TO_FLOAT

_PP0 = (
    0.0007969367292973471, 0.08283523921074408, 1.239533716464143, 5.447250030587687, 8.74716500199817,
    5.303240382353949, 1.0,
)  # fmt: skip

_PQ0 = (
    0.0009244088105588637, 0.08562884743544745, 1.2535274390105895, 5.470977403304171, 8.761908832370695,
    5.306052882353947, 1.0,
)  # fmt: skip

_QP0 = (
    -0.011366383889846916, -1.2825271867050931, -19.553954425773597, -93.20601521237683, -177.68116798048806,
    -147.07750515495118, -51.41053267665993, -6.050143506007285,
)  # fmt: skip

_QQ0 = (
    64.3178256118178, 856.4300259769806, 3882.4018360540163, 7240.467741956525, 5930.727011873169, 2062.0933166032783,
    242.0057402402914,
)  # fmt: skip

_RP0 = (
    -4794432209.782018, 1956174919465.5657, -249248344360967.72, 9708622510473064.0,
)  # fmt: skip

_RQ0 = (
    499.563147152651, 173785.4016763747, 48440965.83399621, 11185553704.535683, 2112775201154.892, 310518229857422.56,
    3.1812195594320496e+16, 1.7108629408104315e+18,
)  # fmt: skip

_YP0 = (
    15592.436785523574, -14663929.59039716, 5435264770.518765, -982136065717.9115, 87590639439536.7,
    -3466283033847297.0, 4.4273326857256984e+16, -1.8495080043698668e+16,
)  # fmt: skip

_YQ0 = (
    1041.2835366425984, 626107.330137135, 268919633.39381415, 86400248710.3935, 20297961275010.555,
    3171577528429750.5, 2.5059625617265306e+17,
)  # fmt: skip

_PP1 = (
    0.0007621256162081731, 0.07313970569409176, 1.1271960812968493, 5.112079511468076, 8.424045901417724,
    5.214515986823615, 1.0,
)  # fmt: skip

_PQ1 = (
    0.0005713231280725487, 0.06884559087544954, 1.105142326340617, 5.073863861286015, 8.399855543276042,
    5.209828486823619, 1.0,
)  # fmt: skip

_QP1 = (
    0.05108625947501766, 4.982138729512334, 75.82382841325453, 366.7796093601508, 710.8563049989261,
    597.4896124006136, 211.68875710057213, 25.207020585802372,
)  # fmt: skip

_QQ1 = (
    74.23732770356752, 1056.4488603826283, 4986.410583376536, 9562.318924047562, 7997.041604473507,
    2826.1927851763908, 336.0936078106983,
)  # fmt: skip

_RP1 = (
    -899971225.7055594, 452228297998.19403, -72749424522181.83, 3682957328638529.0,
)  # fmt: skip

_RQ1 = (
    620.8364781180543, 256987.25675774884, 83514679.14319493, 22151159547.97925, 4749141220799.914, 784369607876235.9,
    8.952223361846274e+16, 5.322786203326801e+18,
)  # fmt: skip

_YP1 = (
    1263204747.9017804, -647355876379.1603, 114509511541823.73, -8127702555013251.0, 2.024394757135949e+17,
    -7.788771962659501e+17,
)  # fmt: skip

_YQ1 = (
    594.3015923461282, 235564.09294306856, 73481194.44597217, 18760131610.870617, 3882312774962.3857,
    620557727146953.8, 6.871410873553005e+16, 3.9727060811656064e+18,
)  # fmt: skip
_A0 = (
    1.374465435613523e-16, 4.25981614279661e-14, 1.0349695257633842e-11, 1.904516377220209e-09,
    2.5347910790261494e-07, 2.286212103119452e-05, 0.001264615411446926, 0.0359799365153615, 0.3442898999246285,
    -0.5353273932339028,
)  # fmt: skip

_B0 = (
    5.300433772686263e-18, -1.6475804301524212e-17, 5.2103915050390274e-17, -1.678231096805412e-16,
    5.512055978524319e-16, -1.848593377343779e-15, 6.3400764774050706e-15, -2.2275133269916698e-14,
    8.032890775363575e-14, -2.9800969231727303e-13, 1.140340588208475e-12, -4.514597883373944e-12,
    1.8559491149547177e-11, -7.957489244477107e-11, 3.577397281400301e-10, -1.69753450938906e-09,
    8.574034017414225e-09, -4.660489897687948e-08, 2.766813639445015e-07, -1.8317555227191195e-06,
    1.39498137188765e-05, -0.00012849549581627802, 0.0015698838857300533, -0.0314481013119645, 2.4403030820659555,
)  # fmt: skip

_A1 = (
    -7.023863479386288e-18, -2.427449850519366e-15, -6.666901694199329e-13, -1.4114883926335278e-10,
    -2.213387630734726e-08, -2.4334061415659684e-06, -0.0001730288957513052, -0.006975723859639864,
    -0.12261118082265715, -0.3531559607765449, 1.5253002273389478,
)  # fmt: skip

_B1 = (
    -5.756744483665017e-18, 1.7940508731475592e-17, -5.689462558442859e-17, 1.838093544366639e-16,
    -6.057047248373319e-16, 2.038703165624334e-15, -7.019837090418314e-15, 2.4771544244813043e-14,
    -8.976705182324994e-14, 3.3484196660784293e-13, -1.2891739609510289e-12, 5.13963967348173e-12,
    -2.1299678384275683e-11, 9.218315187605006e-11, -4.1903547593418965e-10, 2.015049755197033e-09,
    -1.0345762465678097e-08, 5.7410841254500495e-08, -3.5019606030878126e-07, 2.406484947837217e-06,
    -1.936197974166083e-05, 0.00019521551847135162, -0.002857816859622779, 0.10392373657681724, 2.7206261904844427,
)  # fmt: skip


def polynomial(coefficients: Sequence[float], x: Any) -> Any:
    """Horner's scheme, the highest power first."""
    result = jnp.zeros_like(x)
    for coefficient in coefficients:
        result = result * x + coefficient
    return result


# ---- first and second kind: a rational function up to 5, and beyond it modulus and phase


def _amplitudes(x: Any, order: int) -> tuple[Any, Any, Any]:
    """The factors of the sine and the cosine of the phase beyond 5, and the phase."""
    z = 25 / (x * x)
    pp, pq, qp, qq = (_PP0, _PQ0, _QP0, _QQ0) if order == 0 else (_PP1, _PQ1, _QP1, _QQ1)
    even = polynomial(pp, z) / polynomial(pq, z)
    odd = 5 / x * (polynomial(qp, z) / polynomial(qq, z))
    return even, odd, x - (0.25 + 0.5 * order) * math.pi


@pointwise("aten::special_bessel_j0", promotion=INT_TO_FLOAT)
def bessel_j0(x):
    x = jnp.abs(x)
    square = x * x
    near = (square - 5.78318596294678452118) * (square - 30.4712623436620863991)
    near = near * polynomial(_RP0, square) / polynomial(_RQ0, square)
    near = jnp.where(x < 1e-5, 1 - square / 4, near)
    even, odd, phase = _amplitudes(x, 0)
    far = (even * jnp.cos(phase) - odd * jnp.sin(phase)) * math.sqrt(2 / math.pi) / jnp.sqrt(x)
    return jnp.where(x <= 5, near, far)


@pointwise("aten::special_bessel_j1", promotion=INT_TO_FLOAT)
def bessel_j1(x):
    size = jnp.abs(x)
    square = x * x
    near = polynomial(_RP1, square) / polynomial(_RQ1, square) * x
    near = near * (square - 14.6819706421238932572) * (square - 49.2184563216946036703)
    even, odd, phase = _amplitudes(size, 1)
    far = (even * jnp.cos(phase) - odd * jnp.sin(phase)) * math.sqrt(2 / math.pi) / jnp.sqrt(size)
    return jnp.where(size <= 5, near, jnp.where(x < 0, -far, far))


@pointwise("aten::special_bessel_y0", promotion=INT_TO_FLOAT)
def bessel_y0(x):
    square = x * x
    near = polynomial(_YP0, square) / polynomial(_YQ0, square) + 2 / math.pi * jnp.log(x) * bessel_j0(x)
    even, odd, phase = _amplitudes(x, 0)
    far = (even * jnp.sin(phase) + odd * jnp.cos(phase)) * math.sqrt(2 / math.pi) / jnp.sqrt(x)
    return _of_positive(x, jnp.where(x <= 5, near, far), -jnp.inf)


@pointwise("aten::special_bessel_y1", promotion=INT_TO_FLOAT)
def bessel_y1(x):
    square = x * x
    near = x * (polynomial(_YP1, square) / polynomial(_YQ1, square))
    near = near + 2 / math.pi * (bessel_j1(x) * jnp.log(x) - 1 / x)
    even, odd, phase = _amplitudes(x, 1)
    far = (even * jnp.sin(phase) + odd * jnp.cos(phase)) * math.sqrt(2 / math.pi) / jnp.sqrt(x)
    return _of_positive(x, jnp.where(x <= 5, near, far), -jnp.inf)


def _of_positive(x: Any, found: Any, at_zero: float) -> Any:
    """`found`, for functions that have a pole at 0 and are not real below."""
    return jnp.where(x == 0, at_zero, jnp.where(x < 0, jnp.nan, found))


@pointwise("aten::special_spherical_bessel_j0", promotion=INT_TO_FLOAT)
def spherical_bessel_j0(x):
    terms = [(-1) ** k / math.factorial(2 * k + 1) for k in reversed(range(7))]
    found = jnp.where(jnp.abs(x) < 0.5, polynomial(terms, x * x), jnp.sin(x) / x)
    return jnp.where(jnp.isinf(x), 0, found)


# ---- modified Bessel functions of the second kind


def _chebyshev(coefficients: Sequence[float], x: Any) -> Any:
    """Clenshaw's recurrence, as Cephes has it: the argument is twice that of the polynomials."""
    before = last = jnp.zeros_like(x)
    found = jnp.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        before, last = last, found
        found = x * last - before + coefficient
    return 0.5 * (found - before)


def _k0(x: Any, scaled: bool) -> Any:
    near = _chebyshev(_A0, x * x - 2) - jnp.log(0.5 * x) * scipy.i0(x)
    far = _chebyshev(_B0, 8 / x - 2) / jnp.sqrt(x)
    return _of_positive(x, _scaled(x, near, far, scaled), jnp.inf)


def _k1(x: Any, scaled: bool) -> Any:
    near = jnp.log(0.5 * x) * scipy.i1(x) + _chebyshev(_A1, x * x - 2) / x
    far = _chebyshev(_B1, 8 / x - 2) / jnp.sqrt(x)
    return _of_positive(x, _scaled(x, near, far, scaled), jnp.inf)


def _scaled(x: Any, near: Any, far: Any, scaled: bool) -> Any:
    """Of two parts up to 2 and beyond, the second one comes without its factor exp(-x)."""
    return jnp.where(x <= 2, near * jnp.exp(x), far) if scaled else jnp.where(x <= 2, near, jnp.exp(-x) * far)


@pointwise("aten::special_modified_bessel_k0", promotion=INT_TO_FLOAT)
def modified_bessel_k0(x):
    return _k0(x, False)


@pointwise("aten::special_modified_bessel_k1", promotion=INT_TO_FLOAT)
def modified_bessel_k1(x):
    return _k1(x, False)


@pointwise("aten::special_scaled_modified_bessel_k0", promotion=INT_TO_FLOAT)
def scaled_modified_bessel_k0(x):
    return _k0(x, True)


@pointwise("aten::special_scaled_modified_bessel_k1", promotion=INT_TO_FLOAT)
def scaled_modified_bessel_k1(x):
    return _k1(x, True)
