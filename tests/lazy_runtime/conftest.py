"""What the tests of the device share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import lazy_runtime
from lazy_runtime.common import metrics
from lazy_runtime.recording import dispatch
from lazy_runtime.tensor import xla_tensor as tensor
from lazy_runtime.torch_xla.experimental import eager_mode
from tests.lazy_runtime.ranks import Ranks


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Nothing pending, lazy mode, no counts, one seed."""
    torch.manual_seed(0)
    lazy_runtime.sync()
    metrics.clear()
    yield
    eager_mode(False)
    torch.xla.set_rng_state(torch.zeros(1, dtype=torch.uint8))


@pytest.fixture
def in_python(monkeypatch) -> Callable[[], None]:
    """Has everything recorded in Python from its call on."""
    return lambda: monkeypatch.setattr(tensor.XLATensor, "__torch_dispatch__", classmethod(dispatch.dispatch))


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
