"""Operators whose result's size depends on data."""

from __future__ import annotations

import math

import pytest
import torch

import lazy_runtime
from lazy_runtime.common import metrics

NAN, INF = math.nan, math.inf


def looks(tree):
    """Dtypes, sizes, visible strides and values."""
    leaves = tree if isinstance(tree, list | tuple) else [tree]
    return [(x.dtype, x.shape, x.stride() if x.numel() > 1 else None, x.tolist()) for x in leaves]


def same(call, *args):
    """The call on xla tensors gives what it gives on CPU tensors."""
    result = call(*(x.to("xla") for x in args))
    leaves = result if isinstance(result, list | tuple) else [result]
    assert all(leaf.device.type == "xla" for leaf in leaves)
    assert looks(result) == looks(call(*args))
    return result


def same_error(call, *args):
    with pytest.raises(Exception) as expected:  # noqa: PT011  torch says which
        call(*args)
    with pytest.raises(expected.type) as found:
        call(*(x.to("xla") for x in args))
    assert str(found.value).splitlines()[0] == str(expected.value).splitlines()[0]


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.nonzero(),
        lambda x: x.nonzero(as_tuple=True),
        lambda x: x.argwhere(),
        lambda x: x[0, 0].nonzero(),
        lambda x: (x > 100).nonzero(),
        lambda x: x[:0].nonzero(),
        lambda x: torch.nonzero_static(x, size=14, fill_value=7),
        lambda x: torch.nonzero_static(x, size=2),
        lambda x: x[x > 3],
        lambda x: x[x[:, 0] > 3],
        lambda x: x[:, x[0] > 1],
        lambda x: x[torch.tensor([True, False, True])],
        lambda x: x[x[:, 0] > 100],
        lambda x: x[x[:, 0] > 3, 1],
        lambda x: x[x[:, 0] > 3, torch.tensor([1, 2])],
        lambda x: x[torch.tensor(True)],
        lambda x: x[torch.tensor(False)],
        lambda x: x.masked_select(x[0] > 1),
        lambda x: x[0, 0].masked_select(x[0, 0] > -1),
        lambda x: torch.where(x > 2)[1],
        lambda x: torch.combinations(x[0]),
        lambda x: x.bool(),
    ],
)
def test_reads(read):
    same(read, torch.arange(12.0).reshape(3, 4))


def test_only_the_size_is_read():
    x = torch.randn(100, device="xla")
    lazy_runtime.sync(wait=True)
    metrics.clear()
    y = x[x > 0] * 2
    assert metrics.value("TransferFromDevice") == 1  # the size
    assert metrics.value("ExecuteComputation") == 1  # what it takes to know it
    assert metrics.value("xla::nonzero") == 1
    assert not [name for name in metrics.names() if name.startswith("aten::")]
    assert y.min() > 0


def test_masked_reads_are_differentiable():
    x = torch.arange(6.0).to("xla").requires_grad_()
    (x[x > 2].sum() + 2 * x.masked_select(x < 1).sum()).backward()
    assert x.grad.tolist() == [2, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("mask", "values"),
    [
        (lambda x: x > 2, [7.0, 8, 9]),
        (lambda x: x > 2, [7.0]),
        (lambda x: x > 2, [[[7.0]]]),
        (lambda x: x > 100, []),
        (lambda x: x[:, 0] > 2, [1.0, 2, 3]),
        (lambda x: x[:, 0] > -2, [[1.0], [6]]),
        (lambda x: (slice(None), x[0] > 0), [[1.0, 3], [6, 2]]),
        (lambda x: (x[:, 0] > -1, torch.tensor([0, 2])), [1.0, 2]),
    ],
)
def test_masked_writes_need_no_read(mask, values):
    def write(x):
        x = x.clone()
        x[mask(x)] = torch.tensor(values, device=x.device)
        return x

    same(write, torch.arange(6.0).reshape(2, 3))


def test_a_masked_write_stays_in_the_graph():
    x = torch.arange(6.0).to("xla")
    lazy_runtime.sync(wait=True)
    metrics.clear()
    x[x > 2] = torch.tensor([7.0, 8, 9], device="xla")
    assert metrics.value("ExecuteComputation") == 0
    assert x.tolist() == [0, 1, 2, 7, 8, 9]


def test_a_masked_write_of_too_few_values():
    x = torch.arange(6.0).to("xla")
    x[x > 2] = torch.tensor([7.0, 8], device="xla")
    with pytest.raises(RuntimeError, match=r"value tensor of shape \[2\] cannot be broadcast to .* of shape \[3\]"):
        lazy_runtime.sync(wait=True)


def test_a_mask_of_another_shape():
    x = torch.ones(2, 3)
    same_error(lambda x, mask: x[mask], x, torch.ones(3, 3, dtype=torch.bool))
    same_error(lambda x, mask: x.masked_select(mask), x, torch.ones(2, dtype=torch.bool))
    same_error(lambda x, mask: x.masked_select(mask), x, torch.ones(2, 3))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_bincount(dtype):
    x = torch.tensor([1, 3, 3, 0], dtype=dtype)
    same(torch.bincount, x)
    same(lambda x: x.bincount(minlength=6), x)
    same(torch.bincount, x[:0])
    for weights in (torch.float32, torch.float16, torch.int64):
        same(torch.bincount, x, torch.tensor([1, 2, 3, 4]).to(weights))


@pytest.mark.parametrize(
    "args",
    [
        ([1, -1],),
        ([1.0],),
        ([[1]],),
        ([True],),
        ([1], [1.0, 2.0]),
    ],
)
def test_what_bincount_refuses(args):
    same_error(torch.bincount, *map(torch.tensor, args))
    same_error(lambda x: x.bincount(minlength=-1), torch.tensor([1]))


def test_repeat_interleave():
    x = torch.arange(6.0).reshape(2, 3)
    for repeats in ([2, 0], [3, 1], [0, 0]):
        same(lambda x, n: x.repeat_interleave(n, 0), x, torch.tensor(repeats))
        same(torch.repeat_interleave, torch.tensor(repeats, dtype=torch.int32))
    same(lambda x: x.repeat_interleave(2), x)
    for repeats in ([1, -1], [1.0], [[1]]):
        same_error(torch.repeat_interleave, torch.tensor(repeats))


def test_repeat_interleave_of_a_known_size_reads_nothing():
    repeats = torch.tensor([1, 2]).to("xla")
    lazy_runtime.sync(wait=True)
    metrics.clear()
    result = torch.repeat_interleave(repeats, output_size=3)
    assert metrics.value("ExecuteComputation") == 0
    assert result.tolist() == [0, 1, 1]
    result = torch.repeat_interleave(repeats, output_size=4)
    with pytest.raises(RuntimeError, match="allocated size does not match required size"):
        result.cpu()


@pytest.mark.parametrize("options", [{}, {"equal_nan": True}, {"rtol": 0.1}])
def test_allclose(options):
    for x, y in (([1.0, NAN], [1.0, NAN]), ([1.0, INF], [1.05, INF]), ([1], [2]), ([], [1.0])):
        x, y = torch.tensor(x), torch.tensor(y)
        assert torch.allclose(x.to("xla"), y.to("xla"), **options) == torch.allclose(x, y, **options)
    same_error(torch.allclose, torch.ones(2), torch.ones(2, dtype=torch.int64))
    same_error(torch.allclose, torch.ones(2), torch.ones(3))


def test_a_loop_that_depends_on_data():
    """Greedy suppression of overlapping intervals: a mask, an index and a read in each step."""

    def keep(starts, ends, scores):
        order, found = scores.argsort(descending=True), []
        while order.numel():
            best = order[0]
            found.append(best)
            overlap = torch.minimum(ends[order], ends[best]) - torch.maximum(starts[order], starts[best])
            order = order[overlap <= 0.5]
        return torch.stack(found)

    starts = torch.tensor([0.0, 0.1, 2.0, 2.4, 5.0])
    same(keep, starts, starts + 1, torch.tensor([0.5, 0.9, 0.3, 0.8, 0.1]))


@pytest.mark.parametrize("device", ["xla", "cpu"])
def test_compiled_functions_break_their_graph_there(device):
    torch._dynamo.reset()

    def function(x):
        y = x * 2
        z = y[y > 4].sum() + torch.nonzero(y).sum()
        return z + torch.nonzero_static(y, size=2).sum()

    x = torch.arange(6.0).reshape(2, 3)
    assert torch.compile(function, backend="openxla")(x.to(device)).item() == function(x).item()
