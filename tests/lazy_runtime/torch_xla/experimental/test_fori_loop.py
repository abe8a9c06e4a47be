"""`experimental.fori_loop`: loops that depend on data, without reading it."""

from __future__ import annotations

import pytest
import torch

from lazy_runtime.torch_xla import _XLAC
from lazy_runtime.torch_xla.experimental.fori_loop import fori_loop, while_loop


def test_fori_loop():
    x = torch.ones(3, device="xla")
    left, found = fori_loop(2, 7, lambda x: x * 2, x)
    assert "while(" in _XLAC._get_xla_tensors_hlo([found])
    assert (left.item(), found.tolist()) == (0, [32.0] * 3)
    lower, upper = torch.tensor(0, device="xla"), torch.tensor(3, device="xla")
    left, a, b = fori_loop(lower, upper, lambda a, b: (a + b, a), x, x)
    assert (a.tolist(), b.tolist()) == ([5.0] * 3, [3.0] * 3)
    left, same = fori_loop(upper, lower, lambda x: x + 1, x)  # nobody knows before it runs
    assert (left.item(), same.tolist()) == (0, [1.0] * 3)
    with pytest.raises(ValueError, match="upper bound of at least 3"):
        fori_loop(3, 2, lambda x: x, x)
    with pytest.raises(ValueError, match="got none"):
        fori_loop(0, 2, lambda: ())


def test_while_loop():
    weight = torch.tensor(3.0, device="xla")
    start = torch.tensor(1.0, device="xla"), torch.tensor(0, device="xla")
    value, count = while_loop(lambda v, n, w: v < 50, lambda v, n, w: (v * w, n + 1), start, (weight,))
    assert (value.item(), count.item()) == (81.0, 4)
    with pytest.raises(TypeError, match="expected tensors, got 1"):
        while_loop(lambda n: n < 3, lambda n: (n + 1,), (1,))
    with pytest.raises(RuntimeError, match="what is carried has to look the same"):
        while_loop(lambda v, n: v < 5, lambda v, n: (v,), start)
    with pytest.raises(RuntimeError, match="where one element is taken"):
        while_loop(lambda v: v < 5, lambda v: (v + 1,), (torch.ones(2, device="xla"),))
