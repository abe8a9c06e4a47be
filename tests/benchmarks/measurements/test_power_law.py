"""Fits of power laws."""

from __future__ import annotations

import pytest

from benchmarks.measurements import power_law
from benchmarks.measurements.power_law import PowerLaw

SIZES = (1, 2, 4, 8, 16, 32, 64)


def fitted(sizes, values) -> PowerLaw:
    law = power_law.fit(sizes, values)
    assert law is not None
    return law


@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("constant", [0.0, 0.3, 10.0])
def test_exponents_of_known_laws(exponent, constant):
    law = fitted(SIZES, [constant + 2 * size**exponent for size in SIZES])
    assert law.exponent == pytest.approx(exponent, abs=0.1)
    assert law.sizes == (8, 16, 32, 64)


def test_a_linear_law_is_found_exactly_behind_its_constant():
    sizes = (6, 12, 24, 48)
    law = fitted(sizes, [5 + 0.1 * size for size in sizes])
    assert (law.exponent, law.constant) == (pytest.approx(1.0), pytest.approx(5.0))
    assert law.sizes == (24, 48)


def test_what_does_not_grow_has_no_exponent_to_speak_of():
    law = fitted(SIZES, [1.0, 1.1, 0.9, 1.0, 1.1, 1.05, 1.1])
    assert abs(law.exponent) < 0.1
    assert law.constant == 0.0
    assert power_law.verdict(law) == "yes"


def test_few_sizes_have_no_constant():
    assert fitted((1, 2, 3), [11.0, 12.0, 13.0]).constant == 0.0


def test_values_that_are_not_positive_are_left_out():
    assert fitted((1, 2, 4, 8), [0.0, 2.0, 4.0, 8.0]).exponent == pytest.approx(1.0)
    assert power_law.fit((1, 2, 4), [0.0, 0.0, 1.0]) is None
    assert power_law.fit((), ()) is None


def test_the_error_is_larger_behind_a_constant():
    plain, behind = (fitted(SIZES, [constant + size for size in SIZES]) for constant in (0.0, 20.0))
    assert 0.0 < plain.error < 0.1 < behind.error


@pytest.mark.parametrize(
    ("exponent", "error", "most", "expected"),
    [
        (1.05, 0.0, 1.0, "yes"),
        (1.3, 0.05, 1.0, "no"),
        (1.3, 0.25, 1.0, "within noise"),
        (2.05, 0.0, 2.0, "yes"),
        (2.3, 0.0, 2.0, "no"),
    ],
)
def test_verdicts(exponent, error, most, expected):
    assert power_law.verdict(PowerLaw(exponent, error, 0.0, (1, 2)), most) == expected
