"""What differs between two graphs, in words."""

from __future__ import annotations

import pytest
import torch

from lazy_runtime.common.source_locations import Line
from lazy_runtime.debug.recompile_reasons import CAUSES, Recompilation, Seen, explain, nearest
from tests.lazy_runtime.graphs import buffers, number


def seen(function, *tensors, **changes):
    """The function's graph, of whose parts each has a line: call n line n, leaf n line 100 + n."""
    graph = number(function, *buffers(*tensors))[0].graph._replace(**changes)
    lines = [Line("train.py", n, "step") for n in range(len(graph.calls))]
    return Seen(graph, lines, [Line("data.py", 100 + n, "load") for n in range(len(graph.leaves))])


def difference(old, new):
    """The cause, the reason and the number of the line."""
    found = explain(old, new)
    assert found.cause in CAUSES
    return found.cause, found.reason, found.line and found.line.number


def test_the_reason_of_a_shape_is_the_input_and_its_line():
    old, new = (seen(lambda x, y: x + y, torch.ones(size), torch.ones(1)) for size in (4, 5))
    assert difference(old, new) == ("input_shape", "input 0 was f32[4], is f32[5]", 100)


def test_other_inputs_that_changed_are_counted():
    old, new = (seen(lambda x, y, z: x * y + z, *(torch.ones(size) for _ in range(3))) for size in (4, 5))
    assert explain(old, new).reason == "input 0 was f32[4], is f32[5], and 2 other inputs changed"


def test_a_shape_goes_before_a_dtype():
    old = seen(lambda x, y: x * y, torch.ones(1), torch.ones(4))
    new = seen(lambda x, y: x * y, torch.ones(1).double(), torch.ones(5))
    assert difference(old, new) == ("input_shape", "input 1 was f32[4], is f32[5], and 1 other input changed", 101)


def test_an_input_whose_line_is_known_explains_the_others():
    old, new = (seen(lambda x, y: x * y, torch.ones(size), torch.ones(size)) for size in (4, 5))
    new.leaf_lines[0] = None
    assert difference(old, new)[1:] == ("input 1 was f32[4], is f32[5], and 1 other input changed", 101)


def test_the_reason_of_a_dtype():
    old, new = (seen(lambda x: x.exp(), torch.ones(4, dtype=dtype)) for dtype in (torch.float32, torch.bfloat16))
    assert difference(old, new) == ("input_dtype", "input 0 was f32[4], is bf16[4]", 100)


def test_the_reason_of_strides():
    old, new = (seen(lambda x: x.exp(), x) for x in (torch.ones(2, 3), torch.ones(3, 2).t()))
    assert difference(old, new) == ("input_strides", "input 0 was f32[2,3], is f32[2,3] with strides (1,2)", 100)


@pytest.mark.parametrize(
    ("before", "after", "advice"),
    [
        ([(64, 3)], [(37, 3)], "drop it (DataLoader(drop_last=True)) or pad it to 64"),
        ([(37, 3)], [(64, 3)], "pad dimension 0 to a few fixed sizes"),
        ([(8, 30)], [(8, 20)], "pad dimension 1 to a few fixed sizes"),
        ([(8, 30), (8, 30)], [(8, 20), (8, 20)], "pad dimension 1 to a few fixed sizes"),
    ],
)
def test_advice_for_one_size_that_changes(before, after, advice):
    old, new = (seen(lambda *xs: sum(xs), *map(torch.ones, shapes)) for shapes in (before, after))
    assert advice in explain(old, new).advice


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([(8, 30)], [(9, 31)]),  # two sizes
        ([(8, 30), (8, 30)], [(8, 20), (8, 25)]),  # one, but not to the same
        ([(8, 3)], [(8, 3, 1)]),
    ],
)
def test_no_advice_where_padding_would_not_help(before, after):
    old, new = (seen(lambda *xs: [x.exp() for x in xs], *map(torch.ones, shapes)) for shapes in (before, after))
    found = explain(old, new)
    assert (found.cause, found.advice) == ("input_shape", "")


def test_an_argument_is_named_with_both_values():
    old, new = (seen(lambda x, dim=dim: x.exp().sum(dim), torch.ones(3, 3)) for dim in (0, 1))
    assert difference(old, new) == ("argument", "argument dim of aten::sum.dim_IntList was [0], is [1]", 1)


def test_operators_that_came_and_went():
    x = torch.ones(3)
    short = seen(lambda x: x.exp().cos(), x)
    long = seen(lambda x: x.exp().sin().tan().cos(), x)
    other = seen(lambda x: x.exp().neg().cos(), x)
    assert difference(short, long) == ("operators", "aten::sin and 1 more operator were added", 1)
    assert difference(long, short) == ("operators", "aten::sin and 1 more operator are gone", 1)
    assert difference(long, other) == ("operators", "aten::neg in place of aten::sin and 1 more operator", 1)
    assert difference(other, short) == ("operators", "aten::neg is gone", 1)


def test_a_state_that_is_made_once_is_expected():
    old = seen(lambda x: torch.zeros_like(x) * 2 + x, torch.ones(3))
    new = seen(lambda x, y: y * 2 + x, torch.ones(3), torch.ones(3))
    assert "expected once if this is the second step" in explain(old, new).advice
    assert explain(new, old).advice == ""


def test_other_operands_of_the_same_operators():
    old = seen(lambda x, y: (x.exp() - y, y.sin()), torch.ones(3), torch.ones(3))
    new = seen(lambda x, y: (x.exp() - x, y.sin()), torch.ones(3), torch.ones(3))
    assert difference(old, new) == ("operands", "aten::sub.Tensor takes other values", 1)


def test_results_that_are_kept_or_not():
    def function(x, everything):
        y = x.exp()
        z = y.max(0)
        return (y, *z) if everything else z[1]

    all_, one = (seen(lambda x, kept=kept: function(x, kept), torch.ones(3)) for kept in (True, False))
    kept = "is kept by a tensor now, and 1 other change of what is kept"
    gone = "is kept by no tensor any more, and 1 other change of what is kept"
    assert difference(one, all_) == ("outputs", f"the result of aten::exp {kept}", 0)
    assert difference(all_, one) == ("outputs", f"the result of aten::exp {gone}", 0)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"outputs": (1, 0)}, ("outputs", "the results are kept in another order", None)),
        ({"channels_last": (1,)}, ("layout", "the memory of input 1 is channels last now", 101)),
        ({"donated": (1,)}, ("donation", "the buffer of input 1 may be reused now", 101)),
        ({"options": (("an option", 1),)}, ("options", "other options of the compiler", None)),
    ],
)
def test_graphs_of_the_same_operators(changes, expected):
    old, new = (seen(lambda x, y: (x + y, x - y), torch.ones(3), torch.ones(3), **each) for each in ({}, changes))
    assert difference(old, new) == expected


def test_what_a_change_is_undone_to():
    plain = seen(lambda x, y: x + y, torch.ones(3), torch.ones(3))
    changed = [{"channels_last": (0,)}, {"donated": (0,)}]
    found = [explain(seen(lambda x, y: x + y, torch.ones(3), torch.ones(3), **each), plain).reason for each in changed]
    assert found == [
        "the memory of input 0 is in torch's order now",
        "the buffer of input 0 is still needed by a tensor now",
    ]


def test_the_nearest_graph_has_the_fewest_other_operators():
    x = torch.ones(3)
    far = seen(lambda x: x.exp().sin().cos(), x)
    near = seen(lambda x: x.neg().sin().tan(), x)
    new = seen(lambda x: x.neg().sin().cos().tan(), x)
    assert nearest(new.graph, [near, far]) is near
    assert nearest(new.graph, [far, near]) is near


def test_of_the_same_operators_the_fewest_other_inputs_are_nearest():
    def of(*sizes):
        return seen(lambda x, y: (x.exp(), y.exp()), *map(torch.ones, sizes))

    one, both, new = of(3, 4), of(5, 6), of(3, 7)
    assert nearest(new.graph, [one, both]) is one


def test_of_equals_the_latest_is_nearest():
    first, second, new = (seen(lambda x: x.exp(), torch.ones(size)) for size in (3, 4, 5))
    assert nearest(new.graph, [first, second]) is second


def test_a_recompilation_is_one_line():
    found = Recompilation("train.py:41", 7, 1.3, "input_shape", "input 0 changed", Line("data.py", 38, "f"), "", "lazy")
    assert str(found) == "compile #7 of train.py:41 (1.3 s): input 0 changed (data.py:38)"
    assert str(found._replace(line=None, advice="pad it")).endswith(": input 0 changed; pad it")
