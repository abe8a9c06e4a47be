"""Ctrl-C where an exception would lose something: at the first use of xla, in compilations, between the start of a
program and the moment when its results have their tensors.

Python raises KeyboardInterrupt in the main thread, between any two of its instructions. Within `deferred` it waits for
the end of the block.
"""

from __future__ import annotations

# without the conversions to enumerations of `signal`, which take ten times as long
import _signal  # pyright: ignore[reportMissingImports]
import _thread
import functools
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

_SIGINT = int(_signal.SIGINT)
#: Whoever interrupts a second time after so many seconds does not want to wait.
_PATIENCE_S = 2.0

_main = threading.main_thread().ident
# of the main thread alone
_depth = 0
_before: Callable[..., Any] | None = None
_caught: tuple[float, tuple[Any, ...]] | None = None  # when, and what the handler is to be called with


def _note(*arguments: Any) -> None:
    global _caught
    now = time.monotonic()
    if _caught is None:
        _caught = now, arguments
    elif now - _caught[0] > _PATIENCE_S:
        raise_caught()


def raise_caught() -> None:
    """Calls the user's handler if an interrupt waits for the end of `deferred`: nothing would be lost now.

    Raises:
        KeyboardInterrupt: there was one, and the user has no other handler.
    """
    global _caught
    if _caught is not None and _before is not None and _thread.get_ident() == _main:
        arguments, _caught = _caught[1], None
        _before(*arguments)


class deferred:
    """Within the block, interrupts wait for its end. In other threads there are none, and it does nothing."""

    __slots__ = ("_is_entered",)

    def __enter__(self) -> None:
        global _depth, _before
        self._is_entered = False
        if _thread.get_ident() != _main:
            return
        if _depth == 0:
            before = _signal.getsignal(_SIGINT)
            if not callable(before):  # the system's way, or none: no exception comes of it
                return
            _before = before
            _signal.signal(_SIGINT, _note)
        _depth += 1
        self._is_entered = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        global _depth
        if not self._is_entered:
            return
        _depth -= 1
        if _depth == 0:
            if _signal.getsignal(_SIGINT) is _note:
                _signal.signal(_SIGINT, _before)  # type: ignore[arg-type]
            raise_caught()


@functools.cache
def keep_lost() -> None:
    """An interrupt that reaches the main thread in a destructor, or in jax's callback of each garbage collection, is
    reported and dropped by Python. It comes again instead.
    """
    sys.unraisablehook = functools.partial(_raise_again, sys.unraisablehook)


def _raise_again(otherwise: Callable[[Any], Any], unraisable: Any) -> None:
    if unraisable.exc_type is KeyboardInterrupt and _thread.get_ident() == _main:
        _thread.start_new_thread(_interrupt, ())
    else:
        otherwise(unraisable)


def _interrupt() -> None:
    time.sleep(0.001)  # or it would be raised where it was lost
    if callable(_signal.getsignal(_SIGINT)):
        _signal.pthread_kill(_main, _SIGINT)  # ends a wait too, as `interrupt_main` does not
