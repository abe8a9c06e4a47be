"""What OpInfo's samples of elementwise operators leave out: edges of dtypes, zeros, infinities, nan, and errors."""

from __future__ import annotations

import itertools

import pytest
import torch

INF, NAN = float("inf"), float("nan")
FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1.5, 2.5, 7.3, -7.3, 1e5, -1e5, INF, -INF, NAN]
FLOAT_DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGER_DTYPES = [torch.int64, torch.int32, torch.int8, torch.uint8]


def same(function, *tensors: torch.Tensor, tolerance: float = 0.0) -> None:
    """Compares values, where nan stands, and the signs of zeros."""
    expected, result = function(*tensors), function(*(x.to("xla") for x in tensors)).cpu()
    torch.testing.assert_close(result, expected, rtol=tolerance, atol=0.0, equal_nan=True)
    if expected.dtype.is_floating_point:
        zeros = expected == 0
        assert torch.equal(result.signbit()[zeros], expected.signbit()[zeros])


def edges(dtype: torch.dtype) -> torch.Tensor:
    limits = torch.iinfo(dtype)
    values = [0, 1, 2, 3, 7, 31, 32, 63, 64, 100, limits.max, limits.max - 1]
    values += [-value for value in values] + [limits.min + 1] if limits.min else []
    return torch.tensor(sorted(set(values)), dtype=dtype)


def pairs(first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(x.flatten() for x in torch.meshgrid(first, second, indexing="ij"))


@pytest.mark.parametrize("dtype", INTEGER_DTYPES)
@pytest.mark.parametrize("function", [torch.bitwise_left_shift, torch.bitwise_right_shift, torch.pow])
def test_any_count_and_exponent(function, dtype):
    same(function, *pairs(edges(dtype), edges(dtype)))


@pytest.mark.parametrize("dtype", INTEGER_DTYPES)
@pytest.mark.parametrize("mode", ["trunc", "floor", "remainder", "fmod"])
def test_integer_division(mode, dtype):
    values = edges(dtype)
    function = getattr(torch, mode, None) if mode not in ("trunc", "floor") else None
    divide = function or (lambda x, y: torch.div(x, y, rounding_mode=mode))
    same(divide, *pairs(values, values[values != 0]))


DIVISIONS = [torch.floor_divide, torch.remainder, torch.fmod, lambda x, y: torch.div(x, y, rounding_mode="trunc")]


@pytest.mark.parametrize("divide", DIVISIONS)
def test_integer_division_by_zero_raises(divide):
    x = torch.tensor([1, 2], device="xla")
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        divide(x, 0)
    quotient = divide(x, torch.tensor([1, 0], device="xla"))
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        quotient.cpu()


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("divide", DIVISIONS)
def test_float_division(divide, dtype):
    values = torch.tensor([value for value in FLOATS if abs(value) < 10 or value != value], dtype=dtype)
    same(divide, *pairs(values, values), tolerance=2e-6)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_nan_wins(dtype):
    values = torch.tensor([1.0, -1.0, INF, -INF, NAN], dtype=dtype)
    for function in (torch.maximum, torch.minimum, torch.fmax, torch.fmin, torch.clamp_min, torch.clamp_max):
        same(function, *pairs(values, values))
    for low, high in itertools.product((-1.0, NAN, None), (2.0, NAN)):
        same(lambda x, low=low, high=high: x.clamp(low, high), values)
    same(torch.relu, values)
    same(torch.nn.functional.relu6, values)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize(
    "function",
    [
        torch.relu,
        torch.nn.functional.relu6,
        torch.sign,
        torch.round,
        torch.trunc,
        torch.ceil,
        torch.nan_to_num,
        torch.signbit,
        torch.angle,
        torch.isposinf,
    ],
)
def test_zeros_and_infinities(function, dtype):
    same(function, torch.tensor(FLOATS, dtype=dtype))


def test_a_boolean_times_nan_is_nan():
    mask, x = torch.tensor([True, False, False]), torch.tensor([NAN, INF, NAN])
    same(lambda mask, x: mask * x, mask, x)
    same(lambda mask, x: mask.float() * x, mask, x)


@pytest.mark.parametrize("source", FLOAT_DTYPES)
@pytest.mark.parametrize("target", [torch.int64, torch.int32, torch.int16, torch.uint8, torch.bool])
def test_casts_of_floats(source, target):
    same(lambda x: x.to(target), torch.tensor([0.0, -0.0, 0.9, -0.9, 2.5, -2.5, 127.0, 250.0, -3.0], dtype=source))


@pytest.mark.parametrize("target", [torch.int64, torch.int32])
def test_a_cast_of_what_does_not_fit_gives_the_lowest_integer(target):
    same(lambda x: x.to(target), torch.tensor([NAN, INF, -INF, 1e30, -1e30]))


@pytest.mark.parametrize("name", ["sqrt", "acos", "asin", "acosh", "atanh", "asinh", "atan"])
def test_the_sign_of_zero_chooses_the_side_of_a_branch_cut(name):
    parts = torch.tensor([0.0, -0.0, 2.5, -2.5])
    x = torch.complex(*pairs(parts, parts))
    x = x[(x.real == 0) | (x.imag == 0)]
    x = x[x != 0]
    function = getattr(torch, name)
    torch.testing.assert_close(function(x.to("xla")).cpu(), function(x), rtol=1e-5, atol=1e-6)


def test_complex_division_by_zero():
    x = torch.tensor([1 + 1j, -1 + 0.5j, 2 - 3j])
    same(lambda x: torch.view_as_real(x / 0), x)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.bitwise_not(x.float()),
        lambda x: torch.floor(x.bool()),
        lambda x: torch.frac(x),
        lambda x: x ** (-2),
        lambda x: torch.gt(x.to(torch.complex64), 1),
        lambda x: torch.lcm(x.float(), x.float()),
        lambda x: torch.special.erfcx(x.half()),
    ],
)
def test_errors_of_dtypes_come_with_the_call(function):
    x = torch.tensor([1, 2])
    with pytest.raises((RuntimeError, NotImplementedError)) as expected:
        function(x)
    with pytest.raises(type(expected.value)) as found:
        function(x.to("xla"))
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("exponent", [2, 3, 4, -1, -2, 0.5, -0.5, 1.7])
def test_powers_of_16_bit_floats_are_rounded_as_torch_does(exponent, dtype):
    x = (torch.rand(64, generator=torch.Generator().manual_seed(0)) * 4 + 0.01).to(dtype)
    same(lambda x: x**exponent, x)


@pytest.mark.parametrize("function", [torch.fmax, torch.fmin])
def test_of_two_zeros_the_first(function):
    same(function, *pairs(torch.tensor([0.0, -0.0, NAN, 1.0] * 8), torch.tensor([0.0, -0.0, NAN, 1.0])))


def test_the_gradient_of_hardsigmoid_is_the_formulas():
    """Torch's kernel has 1/6 in float32, also for float64."""
    x = torch.linspace(-4, 4, 101, dtype=torch.float64)
    leaf = x.to("xla").requires_grad_()
    torch.nn.functional.hardsigmoid(leaf).sum().backward()
    expected = ((x > -3) & (x < 3)).double() / 6
    torch.testing.assert_close(leaf.grad.cpu(), expected, rtol=1e-15, atol=0)


def test_softplus_of_a_threshold_that_is_not_a_number():
    x = torch.tensor([-8.0, 8.0, 1.0])
    expected = torch.nn.functional.softplus(x, 3, float("nan"))
    torch.testing.assert_close(torch.nn.functional.softplus(x.to("xla"), 3, float("nan")).cpu(), expected)
