from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from ranks import Ranks


@pytest.fixture(scope="session")
def _gangs() -> Iterator[dict[int, Ranks]]:
    gangs: dict[int, Ranks] = {}
    yield gangs
    for gang in gangs.values():
        gang.close()


@pytest.fixture
def ranks(_gangs) -> Callable[[int], Ranks]:
    """`ranks(n)`: n processes of a job, the same for all tests."""

    def get(count: int) -> Ranks:
        if count not in _gangs or _gangs[count].is_closed:
            _gangs[count] = Ranks(count)
        return _gangs[count]

    return get
