"""Slices of a concatenation become slices of its pieces, and the concatenation is not made."""

from __future__ import annotations

import pytest
import torch

import lazy_runtime
from lazy_runtime.execution import concatenations
from lazy_runtime.platform import xla_devices

PIECES = (torch.arange(6).view(2, 3), torch.arange(10, 14).view(2, 2), torch.arange(20, 22).view(2, 1))


def split(function):
    """The operators for a program and those that are left, of a function of a concatenation that grows; its result."""
    pieces = [piece.to("xla") for piece in PIECES]
    lazy_runtime.sync()
    whole = torch.cat([pieces[0], pieces[1] + 0, pieces[2]], dim=1)
    result = function(whole)
    device = xla_devices.get(0)
    for node in device.pending:
        if node.call.name == concatenations.NAME:
            node.call.grows = True
    try:
        to_run, left = concatenations.split(device.pending, set(device.pending), set(), ())
    finally:
        for node in device.pending:
            node.call.grows = False
    device.pending[:] = [*left, *to_run]
    names = [[node.call.name.partition("::")[2].partition(".")[0] for node in nodes] for nodes in (to_run, left)]
    return *names, result, whole


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[:, -1] + 0,
        lambda x: x[:, -1:] + 0,
        lambda x: x[:, 3:5] + 0,
        lambda x: x[:, 1:3] + 0,
        lambda x: x[:, 4] + 0,
        lambda x: x.select(1, 0) + 0,
    ],
)
def test_a_slice_of_one_piece_is_taken_of_that(function):
    to_run, left, result, whole = split(function)
    assert "cat" not in to_run
    assert left == ["cat"]
    expected = torch.cat(PIECES, dim=1)
    assert torch.equal(result.cpu(), function(expected))
    assert torch.equal(whole.cpu(), expected)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[:, 2:4] + 0,
        lambda x: x[:, ::2] + 0,
        lambda x: x[-1:] + 0,
        lambda x: x * 2,
        lambda x: x[:, -1] + x[:, 0] + x.sum(),
    ],
)
def test_what_takes_more_has_the_concatenation_made(function):
    to_run, left, result, whole = split(function)
    assert "cat" in to_run
    assert left == []
    expected = torch.cat(PIECES, dim=1)
    assert torch.equal(result.cpu(), function(expected))
    assert torch.equal(whole.cpu(), expected)


def test_what_reads_a_slice_does_not_know_the_length_of_the_whole():
    specs = []
    for length in (3, 4):
        x = torch.zeros(2, length, dtype=torch.long).to("xla")
        last = torch.ones(2, 1, dtype=torch.long).to("xla")
        lazy_runtime.sync()
        result = (torch.cat([x, last], 1)[:, -1:] + 5) * 2
        pending = xla_devices.get(0).pending
        cat = next(node for node in pending if node.call.name == concatenations.NAME)
        cat.call.grows = True
        to_run, _ = concatenations.split(pending, set(pending), set(), ())
        cat.call.grows = False
        specs.append([node.call for node in to_run])
        pending[:] = to_run
        assert result.tolist() == [[12], [12]]
    assert specs[0] == specs[1]
