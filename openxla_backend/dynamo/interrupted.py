"""Where Ctrl-C ends a compilation, the thread gets back the state that it had when this began.

Tracing enters and leaves modes of torch thousands of times (no gradients, fake tensors, functions of functorch). An
exception between two instructions of what leaves one keeps it, and all later operators would run within.
"""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections.abc import Iterator
from typing import Any

from lazy_runtime import native
from lazy_runtime.compat import dynamo


@functools.cache
def restore_threads() -> None:
    """Makes Dynamo's compilations keep the state of their thread, and bring it back after an interrupt."""
    install = dynamo.install_callbacks.get()

    @contextlib.contextmanager
    def install_callbacks(self: Any, *arguments: Any) -> Iterator[None]:
        with _kept_state(), install(self, *arguments):
            yield

    dynamo.install_callbacks.set(install_callbacks)


@contextlib.contextmanager
def _kept_state() -> Iterator[None]:
    if not native.has_guard():  # CPU tensors do without it
        yield
        return
    library = native.guard()
    state = library.xla_thread_state()
    is_interrupted = False
    try:
        yield
    except KeyboardInterrupt as error:
        is_interrupted = True
        _let_go(error)
        raise
    finally:
        library.xla_end_thread_state(state, is_interrupted)


def _let_go(error: BaseException) -> None:
    """Ends what the frames of an exception hold now: a guard of torch's sets back its mode when it goes, which would
    come after the rest.
    """
    each: BaseException | None = error
    while each is not None:
        traceback.clear_frames(each.__traceback__)
        each = each.__context__
