"""Functions for sizes that are not known: polynomials that all traces agree on, or an error."""

import jax
import jax.numpy as jnp
import pytest
import torch

import lazy_runtime.jax
from lazy_runtime.functions.symbolic import SymbolicSizes


def sizes(*names):
    symbols = jax.export.symbolic_shape(", ".join(names))
    return SymbolicSizes(dict(zip(names, symbols, strict=True))), symbols


@pytest.mark.parametrize("names", [("n",), ("b", "s"), ("b", "s", "t")], ids=["one size", "two sizes", "three sizes"])
def test_numbers_that_are_polynomials(names):
    found, symbols = sizes(*names)
    first, last = symbols[0], symbols[-1]
    values = [list(each.values()) for each in found.assignments]
    assert len({tuple(each) for each in values}) == len(values)
    assert found.polynomial([7 for _ in values]) == 7
    assert found.polynomial([3 * each[0] + 5 for each in values]) == 3 * first + 5
    assert found.polynomial([each[0] * each[-1] * 64 for each in values]) == first * last * 64
    assert found.polynomial([each[-1] ** 2 - 1 for each in values]) == last**2 - 1


def test_numbers_that_are_none():
    found, _ = sizes("n")
    values = [each["n"] for each in found.assignments]
    assert found.polynomial([each // 2 for each in values]) is None
    assert found.polynomial([each**3 for each in values]) is None
    assert found.polynomial([min(each, 50) for each in values]) is None


def test_more_sizes_than_three_are_refused():
    with pytest.raises(NotImplementedError, match=r"4 symbolic sizes \(a, b, c, d\): there may be three"):
        sizes("a", "b", "c", "d")


class Of(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def exported(function, shape, **constraints):
    _, called = lazy_runtime.jax.function(Of(function))
    struct = jax.ShapeDtypeStruct(jax.export.symbolic_shape(shape, **constraints), jnp.float32)
    return jax.export.export(jax.jit(lambda x: called({}, x)))(struct)


def attention(x):
    return torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)


FUNCTIONS = {
    "flattened": lambda x: x.reshape(-1, 1) @ x.new_ones(1, 3),
    "a matrix of positions": lambda x: torch.ones(x.shape[1], x.shape[1], device=x.device).tril() + x.sum(),
    "repeated": lambda x: torch.cat([x, x[:, 1:], x.flip(1)], 1),
    "normalized": lambda x: (x - x.mean(0)) / x.std(0) + x.numel(),
    "attention": lambda x: attention(x[:, None, :, None].expand(-1, 2, -1, 4)),
    "the last": lambda x: x[:, -1] * x.softmax(1)[:, 0],
    "expanded": lambda x: x.sum(0, keepdim=True).expand(*x.shape) + torch.arange(x.shape[1], device=x.device),
    "written in part": lambda x: torch.zeros_like(x).index_fill_(1, torch.tensor([0, 3], device=x.device), 2.0) + x,
    "with a constant": lambda x: x + torch.tensor([1.0, 2.0, 3.0], device=x.device).sum(),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_results_are_torchs_for_any_size(function):
    found = exported(function, "b, s")
    for shape in ((2, 4), (3, 8), (4, 6)):
        x = torch.randn(shape)
        torch.testing.assert_close(torch.from_dlpack(found.call(jnp.asarray(x.numpy()))), function(x))


REFUSED = {
    "it does other things for other sizes": lambda x: x + 1 if x.shape[0] > 20 else x - 1,
    "no polynomial of it": lambda x: x.unfold(0, 3, 2),
    "is a constant": lambda x: x * torch.tensor(float(x.shape[0]), device=x.device),
}


@pytest.mark.parametrize(("why", "function"), REFUSED.items(), ids=REFUSED.keys())
def test_what_is_no_polynomial_is_refused(why, function):
    with pytest.raises(NotImplementedError, match=rf"Of cannot be traced for symbolic sizes: .*{why}.*for fixed ones"):
        exported(function, "n, 4")


def test_a_size_that_is_no_symbol_is_refused():
    with pytest.raises(NotImplementedError, match=r"Of gets an array of \(2\*n, 4\): let 2\*n be a symbol of its own"):
        exported(lambda x: x + 1, "2*n, 4")


def test_constraints_say_what_jax_cannot_know():
    table = torch.arange(512.0)
    function = lambda x: x + table.to(x.device)[: x.shape[1]]  # noqa: E731
    with pytest.raises(Exception, match="'s' <= '512' is inconclusive"):
        exported(function, "b, s")
    found = exported(function, "b, s", constraints=["s <= 512"])
    x = torch.randn(2, 9)
    torch.testing.assert_close(torch.from_dlpack(found.call(jnp.asarray(x.numpy()))), x + table[:9])
