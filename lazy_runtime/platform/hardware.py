"""What stands behind an xla device: its kind by PyTorch/XLA's names, and its memory."""

from __future__ import annotations

import math
import os

from .xla_devices import Device


def kind(device: Device) -> str:
    """`CPU`, `CUDA`, `ROCM`, `TPU`, or what else the plugin calls itself, in capitals."""
    if device.platform == "gpu":  # jax's name for both
        return "ROCM" if "rocm" in device.jax_device.client.platform_version.lower() else "CUDA"
    return device.platform.upper()


def memory(device: Device) -> dict[str, int]:
    """Bytes on the device: `bytes_used`, `bytes_limit` and `peak_bytes_used`.

    The allocators of GPUs and TPUs count all that they gave out. XLA's CPU client does not count, so there
    `bytes_used` is what the live buffers hold, `peak_bytes_used` the most of that at any call of this function, and
    `bytes_limit` the memory of the machine.
    """
    counted = device.jax_device.memory_stats()
    if counted:
        used = int(counted["bytes_in_use"])
        limit = counted.get("bytes_limit") or counted.get("bytes_reservable_limit") or 0
        return {
            "bytes_used": used,
            "bytes_limit": int(limit),
            "peak_bytes_used": int(counted.get("peak_bytes_in_use", used)),
        }
    # a part's size, not the part: that would be one more array of the same memory, which the next call would count
    used = sum(
        math.prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize
        for array in device.jax_device.client.live_arrays()
        if not array.is_deleted() and device.jax_device in array.devices()
    )
    _peaks[device] = max(used, _peaks.get(device, 0))
    limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"bytes_used": used, "bytes_limit": limit, "peak_bytes_used": _peaks[device]}


_peaks: dict[Device, int] = {}
