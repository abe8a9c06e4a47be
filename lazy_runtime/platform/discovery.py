"""Which devices xla has on this host, found out without a use of xla in this process.

Launchers ask: a process that has used xla cannot fork ranks, and it holds the devices that they are to have.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import subprocess
import sys

from ..common import environment
from . import hardware, xla_devices


def kind_and_count() -> tuple[str, int]:
    """The kind of the devices, as `CPU`, `CUDA` or `TPU`, and how many this host has.

    Raises:
        RuntimeError: there are no devices of the platform that `PJRT_DEVICE` chooses.
    """
    platform = os.environ.get("PJRT_DEVICE", "").upper()
    if xla_devices.is_started():
        devices = xla_devices.devices()
        platform = hardware.kind(devices[0])
        if platform != "CPU":
            return platform, len(devices)
    if platform == "CPU" or (not platform and not _has_plugins()):
        return "CPU", environment.value("CPU_NUM_DEVICES") or 1  # those of processes to come
    return _elsewhere(platform)


def _has_plugins() -> bool:
    """Whether jax may have devices besides the CPU: plugins bring them, libtpu those of TPUs."""
    return bool(
        importlib.metadata.entry_points(group="jax_plugins")
        or importlib.util.find_spec("jax_plugins")
        or importlib.util.find_spec("libtpu")
    )


_PROBE = """
from lazy_runtime.platform import hardware, xla_devices
devices = xla_devices._platform_devices()
print(hardware.kind(devices[0]), len(devices))
"""


@functools.cache
def _elsewhere(platform: str) -> tuple[str, int]:
    """What another process finds, which ends at once."""
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}  # by which this package was found
    done = subprocess.run(
        [sys.executable, "-c", _PROBE], capture_output=True, text=True, check=False, env={**os.environ, **path}
    )
    if done.returncode != 0:
        reason = done.stderr.strip().rpartition("\n")[2]
        raise RuntimeError(f"no devices of the platform {platform or 'that jax chooses'} were found: {reason}")
    kind, count = done.stdout.split()[-2:]
    return kind, int(count)
