"""Writes to a part of an argument: torch gets the part, and what reads the whole afterwards sees it."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from lazy_runtime.platform import xla_devices
from openxla_backend.execution import dlpack, host
from openxla_backend.graph import fx
from openxla_backend.graph.outputs import Argument, Result
from tests.openxla_backend import programs
from tests.openxla_backend.helpers import assert_same, compiled

aten = torch.ops.aten
CACHE, PLACE, KEY = torch.zeros(2, 8, 4), torch.tensor([5]), torch.ones(2, 1, 4)


def program(function, *arguments):
    """The program of what the function does on these arguments, for tensors in torch's own memory."""
    gm = make_fx(function, tracing_mode="fake")(*arguments)
    return fx.trace(gm, arguments, xla_devices.host(torch.device("cpu")))


def write(cache, place, key):
    whole = aten.index_copy.default(cache, 1, place, key * 2)
    aten.copy_.default(cache, whole)
    return (whole.sum(),)


def test_the_part_alone_is_written():
    found = program(write, CACHE, PLACE, KEY)
    (part,) = found.partial_writes
    assert (part.number, part.dim, part.index) == (0, 1, Argument(1))
    assert isinstance(part.source, Result)
    assert found.mutations == ()
    assert found.writes_arguments
    assert not program(lambda x: (x + 1,), KEY).writes_arguments


def test_buffers_of_the_device_are_written_whole():
    found = programs.program(write, CACHE, PLACE, KEY)
    assert found.partial_writes == ()
    assert [number for number, _ in found.mutations] == [0]


def test_the_whole_is_written_where_the_rest_changes_too():
    def function(cache, place, key):
        aten.copy_.default(cache, aten.index_copy.default(cache + 1, 1, place, key * 2))
        return ()

    found = program(function, CACHE, PLACE, KEY)
    assert found.partial_writes == ()
    assert 0 in dict(found.mutations)


def test_the_whole_is_written_where_the_part_is_most_of_it():
    found = program(write, CACHE, torch.arange(5), torch.ones(2, 5, 4))
    assert found.partial_writes == ()
    assert 0 in dict(found.mutations)


def decode(cache, place, key):
    cache.index_copy_(1, place, key.transpose(0, 1) * 2)
    place.sub_(1)
    return cache.sum(1), key + 1


@pytest.mark.parametrize("place", [[5], [3, 7]])
def test_the_values_of_eager(place, monkeypatch):
    imported = []

    def record(tensor):
        imported.append(tensor.data_ptr())
        return dlpack.import_tensor(tensor)

    monkeypatch.setattr(host, "import_tensor", record)
    expected = [torch.randn(2, 8, 4), torch.tensor(place)]
    found = [tensor.clone() for tensor in expected]
    fast = compiled(decode)
    for _ in range(3):
        key = torch.randn(len(place), 2, 4)
        assert_same(fast(*found, key), decode(*expected, key))
        assert_same(found, expected)
    assert [imported.count(tensor.data_ptr()) for tensor in found] == [1, 1]  # who holds them passes them again


def test_what_is_written_is_what_arguments_held_before():
    def function(cache, place, key):
        cache.index_copy_(1, place, key)
        place.add_(1)
        key.mul_(2)

    expected = [torch.randn(2, 8, 4), torch.tensor([3]), torch.randn(2, 1, 4)]
    found = [tensor.clone() for tensor in expected]
    fast = compiled(function)
    for _ in range(3):
        function(*expected)
        fast(*found)
        assert_same(found, expected)


def test_an_index_out_of_range_writes_nothing():
    cache = torch.zeros(2, 8, 4)
    fast = compiled(lambda cache, place, key: cache.index_copy_(1, place, key * 2).sum())
    with pytest.raises(IndexError, match=r"out of range|out of bounds"):
        fast(cache, torch.tensor([8]), torch.ones(2, 1, 4))
    assert not cache.any()
