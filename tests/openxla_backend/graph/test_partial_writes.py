"""Writes to a part of an argument: torch gets the part, and what reads the whole afterwards sees it."""

from __future__ import annotations

import pytest
import torch

from openxla_backend.execution import dlpack, host
from openxla_backend.graph.outputs import Argument, Result
from tests.openxla_backend.helpers import assert_same, compiled
from tests.openxla_backend.programs import program

aten = torch.ops.aten
CACHE, PLACE, KEY = torch.zeros(2, 8, 4), torch.tensor([5]), torch.ones(2, 1, 4)


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


def changes_the_place(cache, place, key):
    aten.copy_.default(cache, aten.index_copy.default(cache, 1, place, key * 2))
    aten.copy_.default(place, place + 1)
    return ()


def writes_what_it_was_given(cache, place, key):
    aten.copy_.default(cache, aten.index_copy.default(cache, 1, place, key))
    return ()


def writes_to_another(cache, place, key):
    aten.copy_.default(cache, aten.index_copy.default(cache + 1, 1, place, key * 2))
    return ()


@pytest.mark.parametrize("function", [changes_the_place, writes_what_it_was_given, writes_to_another])
def test_the_whole_is_written_where_the_part_may_be_another_then(function):
    found = program(function, CACHE, PLACE, KEY)
    assert found.partial_writes == ()
    assert 0 in dict(found.mutations)


def test_the_whole_is_written_where_the_part_is_most_of_it():
    found = program(write, CACHE, torch.arange(5), torch.ones(2, 5, 4))
    assert found.partial_writes == ()
    assert 0 in dict(found.mutations)


def decode(cache, place, key):
    cache.index_copy_(1, place, key.transpose(0, 1) * 2)
    place.add_(1)
    return cache.sum(1), key + 1


@pytest.mark.parametrize("place", [[2], [0, 7]])
def test_the_values_of_eager(place, monkeypatch):
    imported = []

    def record(tensor):
        imported.append(tensor.data_ptr())
        return dlpack.import_tensor(tensor)

    monkeypatch.setattr(host, "import_tensor", record)
    count = len(place)
    expected, found = [torch.randn(2, 8, 4)], []
    found = [expected[0].clone()]
    places = [torch.tensor(place), torch.tensor(place)]
    fast = compiled(decode)
    for _ in range(3):
        if max(place) == 7:
            places = [torch.tensor(place), torch.tensor(place)]
        key = torch.randn(count, 2, 4)
        assert_same(fast(found[0], places[1], key), decode(expected[0], places[0], key))
        assert_same(found[0], expected[0])
    assert imported.count(found[0].data_ptr()) == 1  # the cache is the same at each call


def test_an_index_out_of_range_writes_nothing():
    cache = torch.zeros(2, 8, 4)
    fast = compiled(lambda cache, place, key: cache.index_copy_(1, place, key * 2).sum())
    with pytest.raises(IndexError, match="out of range|out of bounds"):
        fast(cache, torch.tensor([8]), torch.ones(2, 1, 4))
    assert not cache.any()
