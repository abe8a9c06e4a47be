"""Which files of these packages Dynamo traces where it meets them. It skips all others, as it does torch's own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import lazy_runtime
from lazy_runtime.compat.dynamo import inlined_files, inlined_modules, skip_package

#: What Dynamo would trace as if it were the user's: an operator on an xla tensor between two graphs is code of these.
_SKIPPED = ("lazy_runtime", "openxla_backend", "jax", "jaxlib")

#: Code that stands around torch's own, or around one operator of a graph, and is traced where a traced function calls
#: it.
_TRACED_IN_CALLS = (
    "dispatcher/module_moves.py",
    "jax/calls.py",
    "recording/adam.py",
    "recording/flex_attention.py",
    "torch_xla/distributed/spmd/mesh.py",
    "torch_xla/distributed/spmd/xla_sharding.py",
)

#: Modules around a user's, whose `forward` is traced as the user's is.
_TRACED = ("torch_xla/experimental/spmd_fully_sharded_data_parallel.py",)


@functools.cache
def register() -> None:
    """Tells Dynamo. Idempotent."""
    for package in _SKIPPED:
        skip_package(package)
    root = Path(lazy_runtime.__file__).parent
    inlined_files.set(_with(inlined_files.get(), root, _TRACED_IN_CALLS))
    inlined_modules.set(_with(inlined_modules.get(), root, _TRACED))


def _with(listed: Callable[[], set[str]], root: Path, files: tuple[str, ...]) -> Callable[[], set[str]]:
    """Torch's list and these files. Torch forgets what was added to the list itself: `init_process_group` has it made
    anew (`trace_rules.clear_lru_cache`).
    """
    make = getattr(listed, "__wrapped__", listed)

    @functools.cache
    @functools.wraps(make)
    def both() -> set[str]:
        return make() | {(root / file).as_posix() for file in files}

    return both
