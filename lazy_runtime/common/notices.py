"""Warnings about what no result depends on: a file that cannot be read, a report that cannot be written."""

from __future__ import annotations

import logging
import warnings

_logger = logging.getLogger(__name__)


def tell(message: str) -> None:
    """Warns the user. A filter that makes errors of warnings (`python -W error`) does not end the program here: the
    message goes to the log then.

    Args:
        message: what is wrong, where, and what to do.
    """
    try:
        warnings.warn(message, RuntimeWarning, stacklevel=3)
    except RuntimeWarning:
        _logger.warning("%s", message)


def append(path: str, text: str, purpose: str) -> None:
    """Appends a report to a file. One that cannot be written is told of once, and the program goes on.

    Args:
        path: of the file, as the user gave it.
        purpose: what named the file, for the message.
    """
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        reason = error.strerror or str(error)
        tell_once(f"{purpose} {path}", f"{purpose} names {path!r}, which cannot be written ({reason}): nothing is kept")


_told: set[str] = set()


def tell_once(topic: str, message: str) -> None:
    """The same, the first time that a topic comes up in this process.

    Args:
        topic: what is told once, with the name of the file.
        message: what is wrong, where, and what to do.
    """
    if topic not in _told:
        _told.add(topic)
        tell(message)
