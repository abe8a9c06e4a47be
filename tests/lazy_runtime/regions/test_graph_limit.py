import pytest
import torch

import lazy_runtime


def compiled(function, most, *arguments):
    """Of a wrapper of its own: the limit is the function's."""
    return lazy_runtime.compile(function, max_different_graphs=most)(*arguments)


def test_where_one_graph_too_many_departs():
    def branching(x, kind):
        y = x + x
        if kind == "mul":
            return y * 10
        return y + x if kind == "add" else y / 3 if kind == "div" else y

    x = torch.ones(10).to("xla")
    for kind in ("mul", "add", "mul"):
        compiled(branching, 2, x, kind)
    with pytest.raises(RuntimeError, match="branching has given 3 different graphs and may give 2") as raised:
        compiled(branching, 2, x, "div")
    assert str(raised.value).splitlines()[1:] == [
        "Got: [] aten::div, xla_shape=f32[10]{0}, dynamic_dims: ()",
        "Expected either of:",
        "  - [] aten::mul, xla_shape=f32[10]{0}, dynamic_dims: ()",
        "  - [] aten::add, xla_shape=f32[10]{0}, dynamic_dims: ()",
    ]
    with pytest.raises(RuntimeError, match=r"Reached the end of the function at: .* aten::add"):
        compiled(branching, 2, x, "none")
    compiled(branching, 3, x, "div")  # the limit can be raised


def test_the_same_operators_in_another_way():
    def function(x, y, swapped):
        return (x - y if not swapped else y - x) * y

    x, y = torch.ones(3).to("xla"), torch.ones(3).to("xla")
    compiled(function, 1, x, y, False)
    with pytest.raises(RuntimeError, match="depend on each other in another way"):
        compiled(function, 1, x, x, False)


def test_a_longer_graph():
    def function(x, more):
        y = x + x
        return y * 2 if more else y

    x = torch.ones(3).to("xla")
    compiled(function, 1, x, False)
    with pytest.raises(RuntimeError, match="Expected: the end of the function"):
        compiled(function, 1, x, True)


def test_a_block_that_raises_ends_its_step():
    x = torch.ones(3).to("xla")
    kept = []

    def step():
        with lazy_runtime.step():
            kept.append(x + 1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        step()
    assert lazy_runtime.torch_xla._XLAC._check_tensor_need_materialization(kept) == [False]
    assert kept[0].tolist() == [2] * 3
