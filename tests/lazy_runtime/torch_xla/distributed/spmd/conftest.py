from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lazy_runtime.torch_xla.distributed.spmd.worker import Worker


@pytest.fixture(scope="session")
def spmd() -> Iterator[Worker]:
    """Calls functions in a process with four CPU devices where `use_spmd()` was called, the same for all tests."""
    worker = Worker(CPU_NUM_DEVICES="4")
    yield worker
    worker.close()
