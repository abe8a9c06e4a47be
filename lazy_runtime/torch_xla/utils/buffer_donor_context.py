"""Whether buffers that the user has marked are donated."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from .. import _XLAC


@contextlib.contextmanager
def alias_with_buffer_donor_config(should_alias: bool = True) -> Iterator[bool]:
    """Within the block, `_XLAC._set_buffer_donation` has effect on what is executed without the step's end too, or not.

    Args:
        should_alias: whether it has.

    Returns:
        a context manager, which gives what was true before.
    """
    before = _XLAC._xla_get_enable_alias_with_buffer_donor_config()
    _XLAC._xla_set_enable_alias_with_buffer_donor_config(should_alias)
    try:
        yield before
    finally:
        _XLAC._xla_set_enable_alias_with_buffer_donor_config(before)
