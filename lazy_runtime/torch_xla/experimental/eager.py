"""The switch between lazy and eager mode, for the whole process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ...common import causes
from .. import torch_xla

causes.register(__file__, "switch to or from eager mode")


def is_eager_mode() -> bool:
    """Whether operators on xla devices run as they are called."""
    from ...execution import execute

    return execute.eager


def eager_mode(enable: bool) -> None:
    """Turns eager mode on or off, for all threads and devices.

    In eager mode each operator is a program of its own, compiled at its first use for these shapes. That is convenient
    for looking around and slow for training: wrap the step in `lazy_runtime.compile`. What is pending runs first.
    """
    from ...execution import execute

    if bool(enable) != execute.eager:
        torch_xla.sync()
        execute.eager = bool(enable)


@contextlib.contextmanager
def eager_mode_context(enable: bool) -> Iterator[bool]:
    """Eager mode on or off within the block, which is given what it was before."""
    outer = is_eager_mode()
    eager_mode(enable)
    try:
        yield outer
    finally:
        eager_mode(outer)
