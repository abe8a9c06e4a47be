"""What the tests of reports share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lazy_runtime.compilation import compiler
from lazy_runtime.debug import compiling, unplanned_syncs


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """No compile and no wait is known."""
    compiler.clear()
    compiling.clear()
    unplanned_syncs.clear()
    yield
    compiling.clear()
    unplanned_syncs.clear()
