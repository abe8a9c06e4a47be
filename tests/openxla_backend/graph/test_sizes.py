"""Symbols of a graph stand for the sizes of one call's arguments."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from openxla_backend.graph.sizes import Sizes


def symbolic(function, *arguments):
    """The function's graph for all sizes, and what it returns: tensors and numbers that depend on them."""
    gm = make_fx(function, tracing_mode="symbolic")(*arguments)
    (output,) = gm.graph.find_nodes(op="output")
    return gm, [node.meta["val"] for node in output.args[0]]


def test_sizes_and_strides_of_results_follow_from_those_of_arguments():
    gm, (flat, transposed) = symbolic(lambda x, y: (x.reshape(-1), (x @ y).t()), torch.ones(4, 5), torch.ones(5, 6))
    for rows, inner, columns in ((2, 3, 7), (8, 9, 10)):
        sizes = Sizes(gm, (torch.ones(rows, inner), torch.ones(inner, columns)))
        assert sizes.ints(flat.shape) == (rows * inner,)
        assert sizes.ints(transposed.shape) == (columns, rows)
        assert sizes.ints(transposed.stride()) == (1, columns)


def test_a_number_among_the_arguments_is_a_symbol_too():
    gm, (repeated, half) = symbolic(lambda x, n: (x.expand(n, x.shape[0]), n // 2 + 1), torch.ones(4), 6)
    sizes = Sizes(gm, (torch.ones(3), 11))
    assert sizes.ints(repeated.shape) == (11, 3)
    assert sizes.ints([half]) == (6,)


def test_numbers_stay_as_they_are():
    gm, _results = symbolic(lambda x: [x + 1], torch.ones(4))
    assert Sizes(gm, (torch.ones(3),)).ints([2, 0, 7]) == (2, 0, 7)


def test_no_sizes_are_no_numbers():
    gm, _results = symbolic(lambda x: [x + 1], torch.ones(4))
    assert Sizes(gm, (torch.ones(3),)).ints(()) == ()


def test_a_size_that_the_graph_does_not_know_is_none():
    """As one that depends on data, or on another graph's arguments."""
    gm, _results = symbolic(lambda x: [x + 1], torch.ones(4, 5))
    _other, (strange,) = symbolic(lambda y, z, n: [z.expand(n, 3)], torch.ones(7, 8), torch.ones(3), 9)
    sizes = Sizes(gm, (torch.ones(2, 3),))
    assert sizes.ints(strange.shape) is None
    assert sizes.ints([4, *strange.shape]) is None


def test_fixed_sizes_are_no_symbols():
    gm = make_fx(lambda x: x + 1, tracing_mode="fake")(torch.ones(4, 5))
    (placeholder,) = gm.graph.find_nodes(op="placeholder")
    assert Sizes(gm, (torch.ones(2, 3),)).ints(placeholder.meta["val"].shape) == (4, 5)


def test_an_argument_may_be_missing():
    """None stands for a token of effects."""
    gm, (total,) = symbolic(lambda x, y: [x + 1], torch.ones(4), torch.ones(5))
    assert Sizes(gm, (torch.ones(3), None)).ints(total.shape) == (3,)


def test_every_placeholder_takes_one_argument():
    gm, _results = symbolic(lambda x, y: [x + y], torch.ones(4), torch.ones(4))
    with pytest.raises(ValueError, match="shorter"):
        Sizes(gm, (torch.ones(3),))


def test_an_argument_has_as_many_dimensions_as_the_graph_expects():
    gm, _results = symbolic(lambda x: [x + 1], torch.ones(4, 5))
    with pytest.raises(ValueError, match="shorter"):
        Sizes(gm, (torch.ones(3),))
