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
