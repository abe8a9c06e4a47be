"""Streams and events of `torch.xla`, for code that is written for any device (FSDP).

What is recorded on a device is one program, whose parts XLA schedules by what they need of each other. So there is one
stream, under many names, and nothing to wait for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


class Event:
    """A place in what is recorded. What comes later comes after it anyway.

    Args:
        options: accepted as other devices' events take them (`enable_timing`, ...).
    """

    def __init__(self, *options: Any, **named_options: Any):
        pass

    def record(self, stream: Stream | None = None) -> Event:
        """The place is here."""
        return self

    def wait(self, stream: Stream | None = None) -> None:
        """What is recorded next in a stream comes after it."""

    def query(self) -> bool:
        """Whether what came before it needs no waiting for."""
        return True

    def synchronize(self) -> None:
        """What is read now comes after it: a read waits for what it needs."""


class Stream:
    """One of the names of the device's order of execution.

    Args:
        options: accepted as other devices' streams take them (`device`, `priority`).
    """

    def __init__(self, *options: Any, **named_options: Any):
        pass

    def record_event(self, event: Event | None = None) -> Event:
        """An event at this place."""
        return (event or Event()).record(self)

    def wait_event(self, event: Event) -> None:
        """What is recorded next comes after it."""

    def wait_stream(self, stream: Stream) -> None:
        """What is recorded next comes after what is in the other one."""

    def query(self) -> bool:
        """Whether what is in it needs no waiting for."""
        return True

    def synchronize(self) -> None:
        """What is read now comes after what is in it."""


_default = Stream()
_current: list[Stream] = [_default]


def current_stream(device: Any = None) -> Stream:
    """The one that was chosen last."""
    return _current[-1]


def default_stream(device: Any = None) -> Stream:
    """The one without a choice."""
    return _default


@contextlib.contextmanager
def stream(stream: Stream | None) -> Iterator[None]:
    """Within, this stream is the current one; None leaves things alone."""
    _current.append(stream or _current[-1])
    try:
        yield
    finally:
        _current.pop()
