"""What machine code was made for: it runs where all of this is the same."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from typing import Any

import torch

from lazy_runtime.common import processor
from lazy_runtime.common.version import __version__
from lazy_runtime.native import libraries
from lazy_runtime.platform import xla_devices
from lazy_runtime.platform.xla_devices import Device

from .archive import PackageError


def of(device: Device) -> dict[str, str]:
    """What code that is compiled here, for a device, depends on."""
    jax_device = device.jax_device
    return {
        "openxla-torch": f"{__version__} ({libraries.sources()[:12]})",  # whose kernels it calls
        "jaxlib": importlib.metadata.version("jaxlib"),
        "torch": f"{torch.__version__} ({torch.version.git_version})",
        "platform": str(jax_device.client.platform),
        "device": jax_device.device_kind,
        **({"processor": processor.description()} if jax_device.client.platform == "cpu" else {}),
    }


def refuse_grid(device: Device) -> None:
    """Refuses a device that stands for several (SPMD)."""
    if device.grid is not None:
        raise NotImplementedError("a package is for one device: this process has made one of all (SPMD)")


def device_of(description: Mapping[str, Any], name: str) -> Device:
    """Where a package's program runs: the current xla device, or the CPU's own tensors.

    Raises:
        NotImplementedError: this process has made one device of all.
        PackageError: the program was made for something else; the message says what differs.
    """
    kind = description["device"]
    device = xla_devices.get() if kind == "xla" else xla_devices.memory(torch.device(kind))
    refuse_grid(device)
    required, here = description["requires"], of(device)
    differing = [
        f"{each} {required.get(each)!r}, here {here.get(each)!r}"
        for each in {**required, **here}
        if required.get(each) != here.get(each)
    ]
    if differing:
        raise PackageError(f"{name} was made for {'; '.join(differing)}: package the model again, here")
    return device
