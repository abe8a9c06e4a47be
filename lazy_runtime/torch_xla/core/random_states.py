"""States of xla devices' random numbers, as `xm` has them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

_Device = torch.device | str | int | None


def get_rng_state(device: _Device = None) -> int:
    """The state of a device's random numbers.

    From then on the device has a stream of its own, which no longer follows `torch.manual_seed`
    (`RandomStream.detach` says why). `torch.xla.get_rng_state` changes nothing.

    Args:
        device: an xla device; the current one by default.
    """
    from ...platform import xla_devices

    return xla_devices.get(device).random.detach()


def set_rng_state(seed: int, device: _Device = None) -> None:
    """Goes on from a number of `get_rng_state`, or begins a new stream with any other.

    Args:
        device: an xla device; the current one by default.
    """
    from ...platform import xla_devices

    xla_devices.get(device).random.seed(seed)


@contextlib.contextmanager
def fork_rng(device: _Device = None, enabled: bool = True) -> Iterator[None]:
    """After the block, a device's random numbers go on as if none had been drawn within it.

    Args:
        device: an xla device; the current one by default.
        enabled: do nothing if false.
    """
    from ...platform import xla_devices

    if not enabled:
        yield
        return
    stream = xla_devices.get(device).random
    state = stream.get_state()
    with torch.random.fork_rng(devices=[]):  # which the stream may follow
        try:
            yield
        finally:
            stream.set_state(state)
