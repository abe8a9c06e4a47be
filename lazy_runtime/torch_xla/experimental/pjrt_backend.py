"""`pjrt://`, the older name of `init_process_group("xla", init_method="xla://")`: an import registers it."""

from __future__ import annotations

import contextlib
from typing import Any

import torch.distributed

from .._internal.rendezvous import pjrt_rendezvous_handler
from ..distributed import xla_backend  # noqa: F401  registers the backend

_dist: Any = torch.distributed

with contextlib.suppress(RuntimeError):  # of a module that is loaded again
    _dist.register_rendezvous_handler("pjrt", pjrt_rendezvous_handler)
