"""Where the processes of `init_process_group("xla", init_method="xla://")` meet."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any, NoReturn

import torch.distributed

from ..distributed import xla_backend

_dist: Any = torch.distributed


class DummyStore(_dist.Store):
    """A store without keys, for groups whose ranks have met already (`TORCH_DIST_INIT_BARRIER=0`).

    Args:
        args, kwargs: accepted as another store's.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__()

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(
            'DummyStore keeps no keys: give the process group a TCPStore, or leave the store to init_method="xla://"'
        )

    set = get = add = wait = check = delete_key = compare_set = num_keys = _refuse


def pjrt_rendezvous_handler(
    url: str, timeout: datetime.timedelta | None = None, **kwargs: Any
) -> Iterator[tuple[Any, int, int]]:
    """The handler of `xla://`: once, the store of the process's job, its rank, and how many ranks there are.

    A process that belongs to no job gets a store of its own, rank 0 and 1 rank.
    """
    yield from xla_backend._rendezvous(url, timeout, **kwargs)
