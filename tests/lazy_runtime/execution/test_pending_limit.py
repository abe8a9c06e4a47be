"""A graph that grows and grows."""

from __future__ import annotations

import pytest
import torch

import lazy_runtime
from lazy_runtime.execution import execute


def test_it_warns_once_with_the_line_where_it_began(monkeypatch):
    monkeypatch.setattr(execute, "pending_limit", 5)
    x = torch.ones(3, device="xla")
    lazy_runtime.sync()
    for _ in range(2):
        y = x + 1  # the line
        y = y + 1
        y = y + 1
        y = y + 1
        with pytest.warns(RuntimeWarning, match=r"5 operators are pending on xla:0.*test_pending_limit\.py:17"):
            y = y + 1
        y = y + 1
        lazy_runtime.sync()
    assert y.tolist() == [7, 7, 7]
    for _ in range(3):
        y = y + 1
        y = y + 1
        lazy_runtime.sync()
