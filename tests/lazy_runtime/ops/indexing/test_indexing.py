"""Indexing, gathering and scattering against torch's CPU kernels: values, and the errors of indices out of range."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import lazy_runtime

aten = torch.ops.aten


def index(*numbers):
    return torch.tensor(numbers)


X = torch.arange(12.0).reshape(3, 4)
V = torch.arange(3.0)
ROW = torch.tensor([[0, 4]])

OUT_OF_RANGE = {
    "index": (lambda x, i: x[i], X, index(5)),
    "index, negative": (lambda x, i: x[0, i], X, index(1, -5)),
    "index, second dimension": (lambda x, i: x[:, i], X, index(7)),
    "index_put": (lambda x, i: x.index_put((i,), x[0]), X, index(-4)),
    "index_put, accumulated": (lambda x, i: x.index_put((i, i), x[0, 0], accumulate=True), X, index(3)),
    "gather": (lambda x, i: x.gather(1, i), X, ROW),
    "gather, negative": (lambda x, i: x.gather(1, i), X, -ROW),
    "scatter": (lambda x, i: x.scatter(0, i, x), X, ROW),
    "scatter_add": (lambda x, i: x.scatter_add(0, i, x), X, ROW),
    "scatter_reduce": (lambda x, i: x.scatter_reduce(0, i, x, "amax"), X, ROW),
    "index_select": (lambda x, i: x.index_select(0, i), X, index(3)),
    "index_select, dimension 1": (lambda x, i: x.index_select(1, i), X, index(0, -1)),
    "index_add": (lambda x, i: x.index_add(0, i, x[:1]), X, index(-1)),
    "index_add, scaled": (lambda x, i: x.index_add(0, i, x[:1], alpha=2), X, index(3)),
    "index_copy": (lambda x, i: x.index_copy(0, i, x[:1]), V, index(3)),
    "index_fill": (lambda x, i: x.index_fill(0, i, 1), V, index(-4)),
    "index_reduce": (lambda x, i: x.index_reduce(0, i, x[:1], "mean"), X, index(-1)),
    "take": (lambda x, i: x.take(i), X, index(-13)),
    "put": (lambda x, i: x.put(i, x[0, :1]), X, index(12)),
    "embedding": (lambda x, i: F.embedding(i, x), X, index(-1)),
    "nll_loss": (lambda x, i: F.nll_loss(x, i), X, index(0, 1, 4)),
    "one_hot": (lambda x, i: F.one_hot(i, 3) + x[0, :3], X, index(0, 3)),
    "masked_scatter": (lambda x, i: x.masked_scatter(x > 2, i + 0.0), X, index(0, 3)),
    "mask, too few values": (lambda x, i: x.index_put((x > 2,), i + 0.0), X, index(0, 3)),
    "mask, too many values": (lambda x, i: x.index_put((x > 99,), i + 0.0), X, index(0, 3)),
    "index into nothing": (lambda x, i: x[i], torch.zeros(0, 3), index(0)),
    "gather from nothing": (lambda x, i: x.gather(0, i), torch.zeros(0, 3), index(0)[None]),
    "select_scatter": (lambda x, i: x.select_scatter(x[0], 0, 3), X, index(0)),
}


def raised(function, x, i) -> Exception:
    with pytest.raises(Exception) as found:  # noqa: PT011  which one is what is compared
        function(x, i).cpu()
    return found.value


@pytest.mark.parametrize("name", OUT_OF_RANGE)
@pytest.mark.filterwarnings("ignore:index_reduce")
def test_out_of_range(name):
    function, x, i = OUT_OF_RANGE[name]
    expected = raised(function, x, i)
    error = raised(function, x.to("xla"), i.to("xla"))
    assert type(error) is type(expected)
    assert str(error).splitlines()[0] == str(expected).splitlines()[0]


@pytest.mark.parametrize("name", ["index", "gather", "scatter", "embedding", "nll_loss", "take"])
@pytest.mark.parametrize("device", ["xla", "cpu"])
def test_out_of_range_when_compiled(name, device):
    function, x, i = OUT_OF_RANGE[name]
    expected = raised(function, x, i)
    compiled = torch.compile(function, backend="openxla", fullgraph=True)
    error = raised(compiled, x.to(device), i.to(device))
    assert type(error) is type(expected)
    assert str(error).splitlines()[0] == str(expected).splitlines()[0]


def test_a_sync_raises():
    found = X.to("xla").gather(1, ROW.to("xla"))
    with pytest.raises(RuntimeError, match="index 4 is out of bounds for dimension 1 with size 4"):
        lazy_runtime.sync(wait=True)
    del found


MASK = torch.tensor([True, False, True])
NAN = float("nan")

WITHIN_RANGE = {
    "rows by a mask": (lambda x, m: x.index_put((m,), x[:2] + 100), X, MASK),
    "rows by a mask, one for all": (lambda x, m: x.index_put((m,), x[:1]), X, MASK),
    "columns by a mask": (lambda x, m: aten.index_put(x, [None, m], x[:, :2] + 100, True), X[:, :3], MASK),
    "a mask of everything": (lambda x, m: x.index_put((x > 5,), x.reshape(-1)[:6]), X, MASK),
    "a mask of nothing": (lambda x, m: x.index_put((x > 99,), x.new_zeros(0)), X, MASK),
    "masked_scatter": (lambda x, m: x.masked_scatter(m[:, None], x + 100), X, MASK),
    "max of nan": (lambda x, m: x.scatter_reduce(0, m.long(), x, "amax"), torch.tensor([1, NAN, 2]), MASK),
    "min of nan": (lambda x, m: x.index_reduce(0, m.long(), x, "amin"), torch.tensor([NAN, 1, 2]), MASK),
    "mean of integers": (
        lambda x, m: x.scatter_reduce(0, m.long(), x, "mean", include_self=False),
        torch.tensor([-3, 4, -4]),
        MASK,
    ),
    "wrap-around": (lambda x, m: x.scatter_add(0, m.long(), x), torch.tensor([200, 100, 99], dtype=torch.uint8), MASK),
    "sum of booleans": (lambda x, m: x.scatter_add(0, x.long(), m), MASK, MASK),
    "no dimensions": (lambda x, m: x.index_add(0, m[:1].long() - 1, x, alpha=3), torch.tensor(2.0), MASK),
    "out of nothing": (lambda x, m: x[m.long()], torch.zeros(3, 0), MASK),
    "padding means nothing": (
        lambda x, m: aten._unsafe_masked_index(x, m, [m.long() * 0 + 99 * ~m], -1.0),
        V,
        MASK,
    ),
}


@pytest.mark.parametrize("name", WITHIN_RANGE)
@pytest.mark.filterwarnings("ignore:index_reduce")
def test_values(name):
    function, x, mask = WITHIN_RANGE[name]
    torch.testing.assert_close(
        function(x.to("xla"), mask.to("xla")).cpu(), function(x, mask), rtol=0, atol=0, equal_nan=True
    )
