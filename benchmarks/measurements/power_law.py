"""A power law `constant + factor * size ** exponent`, fitted to a measurement that grows with a size."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

#: How much an exponent may exceed the expected one, beyond its error.
ALLOWANCE = 0.1

#: The relative error that each measured value may have.
NOISE = 0.1

#: Values that grow by less over the upper half keep their constant: what it leaves would be noise.
FLAT = 1.25

#: With fewer sizes the lower half would be part of what is fitted.
SIZES_FOR_CONSTANT = 4


class PowerLaw(NamedTuple):
    """A fitted power law.

    Attributes:
        exponent: the slope in log-log, after the constant is subtracted.
        error: what relative errors of `NOISE` in the values change the exponent by, as a root of squares.
        constant: the part of the values that does not depend on the size.
        sizes: those that the exponent is fitted to.
    """

    exponent: float
    error: float
    constant: float
    sizes: tuple[int, ...]


def fit(sizes: Sequence[int], values: Sequence[float]) -> PowerLaw | None:
    """Fits the upper half of the sizes by least squares in log-log.

    The line through the lower half's values, extended to size 0, gives the constant. It underestimates the constant of
    a superlinear law, of which little is left in the upper half.

    Args:
        sizes: in increasing order.
        values: one of each size; those that are not positive are left out.

    Returns:
        None where fewer than two values are left.
    """
    pairs = [(size, value) for size, value in zip(sizes, values, strict=True) if value > 0]
    if len(pairs) < 2:
        return None
    exponent, constant = _exponent(pairs)
    changes = []
    for place, (size, value) in enumerate(pairs):
        other = [*pairs[:place], (size, value * (1 + NOISE)), *pairs[place + 1 :]]
        changes.append(_exponent(other)[0] - exponent)
    return PowerLaw(exponent, math.hypot(*changes), constant, tuple(size for size, _ in _upper(pairs)))


def _upper(pairs: list[tuple[int, float]]) -> list[tuple[int, float]]:
    return pairs[-max(2, (len(pairs) + 1) // 2) :]


def _exponent(pairs: list[tuple[int, float]]) -> tuple[float, float]:
    """The exponent and the constant."""
    upper = _upper(pairs)
    constant = _constant(pairs)
    if upper[-1][1] < FLAT * upper[0][1] or any(value <= constant for _, value in upper):
        constant = 0.0
    logs = [(math.log(size), math.log(value - constant)) for size, value in upper]
    return statistics.linear_regression(*zip(*logs, strict=True)).slope, constant


def _constant(pairs: list[tuple[int, float]]) -> float:
    if len(pairs) < SIZES_FOR_CONSTANT:
        return 0.0
    lower = pairs[: len(pairs) // 2]
    return max(0.0, statistics.linear_regression(*zip(*lower, strict=True)).intercept)


def verdict(law: PowerLaw, most: float = 1.0) -> str:
    """Whether the growth is of at most an exponent: "yes", "no", or "within noise"."""
    if law.exponent <= most + ALLOWANCE:
        return "yes"
    return "within noise" if law.exponent - law.error <= most + ALLOWANCE else "no"
