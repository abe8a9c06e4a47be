"""A function that is refused leaves the tensors around it as they were."""

from __future__ import annotations

import pytest
import torch

from lazy_runtime.functions import loops


def _add(out, view, y):
    out.add_(y)


def _twice(out, view, y):
    out.add_(y).mul_(2)


def _view(out, view, y):
    view.mul_(2)


def _view_made_inside(out, view, y):
    out[0].add_(1)


def _element(out, view, y):
    out[1] = y[0]


def _copy(out, view, y):
    out.copy_(y)


def _out(out, view, y):
    torch.add(y, y, out=out)


@pytest.mark.parametrize("write", [_add, _twice, _view, _view_made_inside, _element, _copy, _out])
def test_a_write_is_refused_and_undone(write):
    out = torch.arange(3.0, device="xla") + 1
    view = out[1:]

    def body(count, y):
        write(out, view, y)
        return count + 1, y * 2

    start = torch.tensor(0, device="xla"), torch.ones(3, device="xla")
    with pytest.raises(RuntimeError, match="writes to a tensor from outside of it"):
        loops.while_loop(lambda count, y: count < 3, body, start)
    assert out.tolist() == [1, 2, 3]
    out.add_(1)
    assert (out.tolist(), view.tolist()) == ([2, 3, 4], [3, 4])


def test_a_function_that_raises_after_a_write():
    out = torch.ones(3, device="xla")

    def body(count):
        out.add_(count)
        raise KeyError("the function's own")

    with pytest.raises(KeyError, match="the function's own"):
        loops.while_loop(lambda count: count < 3, body, [torch.tensor(0, device="xla")])
    assert out.tolist() == [1, 1, 1]


def test_tensors_that_are_read_are_captured():
    scale = torch.full((3,), 2.0, device="xla")
    (_, y) = loops.while_loop(
        lambda count, y: count < 3,
        lambda count, y: (count + 1, y * scale),
        (torch.tensor(0, device="xla"), torch.ones(3, device="xla")),
    )
    assert (y.tolist(), scale.tolist()) == ([8, 8, 8], [2, 2, 2])


def test_what_was_made_inside_is_not_outside_when_its_value_has_been_read():
    """A value that is made of numbers alone can be read while a function is traced, as transformers' masks are."""

    def body(count, y):
        places = torch.arange(3, device="xla") + 0
        assert (places.diff() == 1).all()
        return count + 1, y + places * 2

    start = torch.tensor(0, device="xla"), torch.zeros(3, dtype=torch.int64, device="xla")
    _, found = loops.while_loop(lambda count, y: count < 3, body, start)
    assert found.tolist() == [0, 6, 12]
