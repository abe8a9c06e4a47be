"""`pjrt://`, the older name of `init_process_group("xla", init_method="xla://")`: an import registers it."""

from __future__ import annotations

import contextlib

import torch.distributed

from .._internal.rendezvous import pjrt_rendezvous_handler
from ..distributed import xla_backend  # noqa: F401  registers the backend

with contextlib.suppress(RuntimeError):  # of a module that is loaded again
    torch.distributed.register_rendezvous_handler("pjrt", pjrt_rendezvous_handler)
