"""Random operators refuse what torch's CPU kernels refuse, in the same words."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import lazy_runtime

aten = torch.ops.aten
NAN, INF = math.nan, math.inf


def ones(*sizes, dtype=None):
    return lambda device: torch.ones(*sizes, dtype=dtype, device=device)


def error_of(function):
    with pytest.raises(Exception) as caught:  # noqa: PT011  the CPU says which
        function()
    return type(caught.value), str(caught.value)


def raises_as_on_cpu(call):
    """The same exception on xla at the same line, in lazy mode."""
    state = torch.get_rng_state()
    assert error_of(lambda: call("xla")) == error_of(lambda: call("cpu"))
    assert torch.equal(state, torch.get_rng_state())


IN_PLACE = {
    "std < 0": lambda x: x.normal_(0, -1),
    "std is nan": lambda x: x.normal_(0, NAN),
    "from > to": lambda x: x.uniform_(2, 1),
    "from is nan": lambda x: x.uniform_(NAN, 1),
    "to is infinite": lambda x: x.uniform_(0, INF),
    "lambda = 0": lambda x: x.exponential_(0),
    "lambda < 0": lambda x: x.exponential_(-1),
    "lambda is nan": lambda x: x.exponential_(NAN),
    "p > 1": lambda x: x.bernoulli_(1.5),
    "p < 0": lambda x: x.bernoulli_(-0.5),
    "p is nan": lambda x: x.bernoulli_(NAN),
    "p = 1": lambda x: x.geometric_(1),
    "p = 0": lambda x: x.geometric_(0),
    "sigma = 0": lambda x: x.cauchy_(0, 0),
    "std = 0": lambda x: x.log_normal_(0, 0),
    "from = to": lambda x: x.random_(3, 3),
    "to = 0": lambda x: x.random_(0),
}


@pytest.mark.parametrize("name", IN_PLACE)
@pytest.mark.parametrize("sizes", [(3,), (0,)], ids=str)
def test_numbers(name, sizes):
    call = IN_PLACE[name]
    try:
        call(torch.ones(sizes))
    except RuntimeError:
        raises_as_on_cpu(lambda device: call(torch.ones(sizes, device=device)))
    else:
        assert sizes == (0,)
        call(torch.ones(sizes, device="xla"))


def test_numbers_that_are_inputs_of_the_graph_are_checked_at_each_call():
    x = torch.ones(3, device="xla").normal_(0, 3)
    with pytest.raises(RuntimeError, match=r"expects std >= 0\.0, but found std -3"):
        x.normal_(0, -3)
    assert x.uniform_(5, 7).max() < 7
    with pytest.raises(RuntimeError, match="found from=7 > to=5"):
        x.uniform_(7, 5)


@pytest.mark.parametrize(
    ("dtype", "bounds"),
    [
        (torch.uint8, (0, 257)), (torch.uint8, (-1, 5)), (torch.int8, (0, 129)), (torch.bool, (0, 3)),
        (torch.float16, (0, 70000)), (torch.int32, (2**31 + 1,)), (torch.int64, (5, 2)), (torch.uint8, (300, None)),
    ],
)  # fmt: skip
def test_bounds_of_integers(dtype, bounds):
    raises_as_on_cpu(lambda device: torch.ones(3, dtype=dtype, device=device).random_(*bounds))
    if None not in bounds:
        raises_as_on_cpu(lambda device: torch.randint(*bounds, (3,), dtype=dtype, device=device))
        raises_as_on_cpu(lambda device: torch.randint_like(torch.ones(3, dtype=dtype, device=device), *bounds))


UNARY = {
    "poisson": torch.poisson,
    "binomial": lambda x: torch.binomial(x, x),
    "_standard_gamma": torch._standard_gamma,
    "_standard_gamma_grad": lambda x: torch._standard_gamma_grad(x, x),
    "_sample_dirichlet": torch._sample_dirichlet,
    "_dirichlet_grad": lambda x: torch._dirichlet_grad(x, x, x),
    "multinomial": lambda x: torch.multinomial(x, 1),
    "rrelu": lambda x: torch.rrelu(x, training=True),
    "bernoulli": torch.bernoulli,
    "bernoulli_(p)": lambda x: x.bernoulli_(0.5),
    "native_dropout": lambda x: torch.native_dropout(x, 0.5, True),
    "uniform_": lambda x: x.uniform_(),
    "normal_": lambda x: x.normal_(),
    "normal": lambda x: torch.normal(x, 1.0),
    "normal_of_std": lambda x: torch.normal(0.0, x),
    "log_normal_": lambda x: x.log_normal_(),
    "exponential_": lambda x: x.exponential_(),
    "cauchy_": lambda x: x.cauchy_(),
    "geometric_": lambda x: x.geometric_(0.5),
    "random_": lambda x: x.random_(),
    "random_from_to": lambda x: x.random_(0, 1),
    "random_from": lambda x: x.random_(1, None),
    "random_of_64_bits": lambda x: x.random_(-(2**63), None),
    "rand_like": torch.rand_like,
    "randn_like": torch.randn_like,
    "randint_like": lambda x: torch.randint_like(x, 1),
}
DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.int8,
    torch.bool, torch.complex64, torch.uint16,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes(dtype):
    """Each operator takes the dtypes that it takes on the CPU, and refuses the others in its words."""
    for name, call in UNARY.items():
        refused = None
        try:
            expected = call(torch.ones(3, dtype=dtype))
        except (RuntimeError, ValueError, NotImplementedError) as error:
            refused = type(error), str(error)
        if refused is not None:
            assert error_of(lambda call=call: call(torch.ones(3, dtype=dtype, device="xla"))) == refused, name
        else:
            result = call(torch.ones(3, dtype=dtype, device="xla"))
            for got, wanted in zip(*(x if isinstance(x, tuple) else (x,) for x in (result, expected)), strict=True):
                assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape), name
                assert got.stride() == wanted.stride(), name
                got.cpu()


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.multinomial(x(2), 3),
        lambda x: torch.multinomial(x(2), 0),
        lambda x: torch.multinomial(x(2), -1),
        lambda x: torch.multinomial(x(2, 2, 2), 1),
        lambda x: torch.multinomial(x(()), 1),
        lambda x: torch.multinomial(x(0), 1),
        lambda x: torch.multinomial(x(2, 0), 2, replacement=True),
        lambda x: torch.normal(x(2, 3), x(4)),
        lambda x: torch.normal(0.0, x(2) + 0j),
        lambda x: torch.normal(x(2), -1.0),
        lambda x: x(2, 2).bernoulli_(x(3)),
        lambda x: x(2).bernoulli_(x(2, 2)),
        lambda x: x(2).bernoulli_(x(2).long()),
        lambda x: torch.binomial(x(2), x(3)),
        lambda x: torch.binomial(x(2), x(2).double()),
        lambda x: torch.binomial(x(2), x(2).long()),
        lambda x: torch.rrelu(x(2), 0.3, 0.1, True),
        lambda x: aten.rrelu_with_noise(x(2), x(3), 0.1, 0.3, True),
        lambda x: torch.native_dropout(x(3), 1.5, True),
        lambda x: torch.dropout(x(3), -0.5, True),
        lambda x: F.dropout(x(3), 1.5),
        lambda x: torch.randperm(-1, device=x(1).device),
        lambda x: torch.randperm(200, dtype=torch.int8, device=x(1).device),
        lambda x: torch.randperm(3000, dtype=torch.float16, device=x(1).device),
        lambda x: torch.randperm(3, dtype=torch.bool, device=x(1).device),
        lambda x: torch.randint_like(x(3), torch.tensor([3])),
        lambda x: torch.randint_like(x(3), torch.tensor(0)),
        lambda x: torch.rand(3, dtype=torch.int64, device=x(1).device),
        lambda x: aten._scaled_dot_product_flash_attention_for_cpu(*[x(1, 1, 2, 2)] * 3, 0.5),
    ],
)
def test_arguments(call):
    raises_as_on_cpu(lambda device: call(lambda *sizes: torch.ones(*sizes, device=device)))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.poisson(x([1.0, -1.0])),
        lambda x: torch.poisson(x([NAN])),
        lambda x: torch.normal(0.0, x([1.0, -1.0])),
        lambda x: torch.normal(x([1.0, 1.0]), x([1.0, NAN])),
        lambda x: torch.bernoulli(x([0.5, 1.5])),
        lambda x: torch.bernoulli(x([NAN])),
        lambda x: x([1.0]).bernoulli_(x([-0.1])),
        lambda x: torch.multinomial(x([1.0, -1.0]), 1),
        lambda x: torch.multinomial(x([1.0, NAN]), 2),
        lambda x: torch.multinomial(x([[1.0, 1.0], [INF, 1.0]]), 1, replacement=True),
        lambda x: torch.multinomial(x([1.0, -1.0]), 2, replacement=True),
        lambda x: torch.multinomial(x([1.0, NAN]), 2, replacement=True),
        lambda x: torch.multinomial(x([1.0, INF]), 2, replacement=True),
        lambda x: torch.multinomial(x([[1.0, 1.0], [0.0, 0.0]]), 2, replacement=True),
        lambda x: torch.multinomial(x([[1.0, 1.0], [0.0, 0.0]]), 2),
    ],
)
def test_values(call):
    """What depends on values raises at the next sync, with the operator and the line."""
    kind, message = error_of(lambda: call(torch.tensor))
    result = call(lambda values: torch.tensor(values, device="xla"))
    with pytest.raises(kind) as caught:
        result.cpu()
    assert str(caught.value).startswith(message + "\n  aten::")
    assert __file__ in str(caught.value)
    lazy_runtime.sync(wait=True)


def test_weights_that_are_right_are_taken():
    x = torch.tensor([0.0, 1.0], device="xla")
    assert torch.multinomial(x, 2).tolist() == [1, 0]
    assert torch.multinomial(x, 3, replacement=True).tolist() == [1, 1, 1]
    assert torch.multinomial(torch.ones(0, 3, device="xla"), 2).shape == (0, 2)
