"""Where ranks meet."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from lazy_runtime.torch_xla import runtime as xr
from lazy_runtime.torch_xla._internal import rendezvous


def meet():
    (found,) = rendezvous.pjrt_rendezvous_handler("xla://")
    store, rank, size = found
    store.set(f"key{rank}", str(rank))
    assert store.get(f"key{1 - rank}") == str(1 - rank).encode()
    return (rank, size) == (xr.global_ordinal(), xr.world_size())


def test_ranks_meet(ranks):
    assert ranks(2)(meet) == [True, True]


def test_a_process_without_a_job_meets_itself():
    ((store, rank, size),) = rendezvous.pjrt_rendezvous_handler("xla://")
    store.set("key", "value")
    assert (store.get("key"), rank, size) == (b"value", 0, 1)


def test_a_store_without_keys():
    store = rendezvous.DummyStore("localhost", 1, timeout=3)
    assert isinstance(store, dist.Store)
    for call in (lambda: store.set("a", "b"), lambda: store.get("a"), lambda: store.add("a", 1)):
        with pytest.raises(NotImplementedError, match="DummyStore keeps no keys"):
            call()
