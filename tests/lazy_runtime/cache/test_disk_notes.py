"""Facts that are kept on disk: they are found out once, and anew where they may not hold."""

from __future__ import annotations

import pytest
import torch

from lazy_runtime.cache import disk_cache
from lazy_runtime.cache.disk_notes import Notes
from lazy_runtime.cache.disk_store import Store
from lazy_runtime.ops.linalg import packed
from tests import native_part


def notes(processor="a"):
    """Those of a new process."""
    return Notes("sizes", lambda: {"processor": processor})


def known(of, key="x"):
    """What is known already; None if nothing is."""
    return of.find(key, lambda: None)


def test_a_later_process_knows(store):
    first = notes()
    assert first.find("x", lambda: 1) == 1
    assert known(first) == 1
    assert known(notes()) is None  # not kept yet
    first.keep()
    assert known(notes()) == 1
    assert known(notes("b")) is None


def test_processes_add_to_each_other(store):
    first, second = notes(), notes()
    first.find("x", lambda: 1)
    second.find("y", lambda: [2])
    first.keep()
    second.keep()
    third = notes()
    assert (known(third, "x"), known(third, "y")) == (1, [2])


def test_without_a_disk(store, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(disk_cache, "_opened", None)
        off = notes()
        assert off.find("x", lambda: 1) == 1
        off.keep()
    monkeypatch.setattr(disk_cache, "_opened", Store(store.path, 1 << 20, readonly=True))
    readonly = notes()
    assert readonly.find("x", lambda: 2) == 2
    readonly.keep()
    assert known(notes()) is None


def test_a_torn_file_is_found_out_again(store):
    first = notes()
    first.find("x", lambda: 1)
    first.keep()
    (file,) = store.path.glob("sizes-*")
    file.write_bytes(file.read_bytes()[:-3])
    assert known(notes()) is None


def test_a_full_disk_is_no_error(store, monkeypatch):
    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(store, "write", full)
    first = notes()
    first.find("x", lambda: 1)
    first.keep()
    assert known(first) == 1


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN")
def test_the_rooms_of_packed_weights(store, monkeypatch):
    native_part.need_bridge()
    monkeypatch.setattr(packed, "rooms", Notes("rooms", packed.disk_key.kernels))
    matrix = torch.empty(64, 129)  # of sizes that no other test has
    found = packed.packed_matrix(matrix, 77)
    packed.rooms.keep()
    packed._matrix_bytes.cache_clear()
    monkeypatch.setattr(packed, "rooms", Notes("rooms", packed.disk_key.kernels))
    monkeypatch.setattr(packed, "_bytes", lambda _: pytest.fail("packed again"))
    assert packed.packed_matrix(matrix, 77) == found
