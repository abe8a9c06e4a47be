"""What can never fit into a device's memory, refused before it runs.

XLA:CPU has no limit of its own: the system would refuse an allocation in the middle of a program, whose donated inputs
are lost by then, or end the process. Only what exceeds all memory there is, used or free, is refused: what fits is not.
"""

from __future__ import annotations

import contextlib
import functools
import resource
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..common import errors
from ..ir import dtypes
from ..ir.spec import TensorSpec, storage_size

if TYPE_CHECKING:
    from ..ir.graph import Graph
    from ..platform.xla_devices import Device

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")


def of(device: Device) -> int | None:
    """Bytes of memory that all programs on a device could have together; None where nobody can tell."""
    count = len(device.jax_devices)
    if device.platform != "cpu":
        limit = (device.jax_device.memory_stats() or {}).get("bytes_limit")
        return int(limit) * count if limit else None
    limits = [_machine(), *_groups(), resource.getrlimit(resource.RLIMIT_AS)[0]]
    known = [limit for limit in limits if limit is not None and limit > 0]  # a limit of -1 is none
    # devices of other processes have memory of their own
    return min(known) * (count if device.spans_processes else 1) if known else None


def _machine() -> int | None:
    """The machine's memory and swap space in bytes."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = (line.split(":") for line in (_PROC / "meminfo").read_text().splitlines())
        sizes = {name: int(size.split()[0]) * 1024 for name, size in lines}
        return sizes["MemTotal"] + sizes.get("SwapTotal", 0) if "MemTotal" in sizes else None
    return None


def _groups() -> Iterable[int]:
    """The limits of memory and swap space of the control groups that the process is in, of version 2."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        path = (_PROC / "self" / "cgroup").read_text().splitlines()[-1].split("::")[1]
        own = _CGROUPS / path.strip("/")
        for folder in (own, *own.parents):
            memory, swap = _number(folder / "memory.max"), _number(folder / "memory.swap.max")
            if memory is not None and swap is not None:
                yield memory + swap
            if folder == _CGROUPS:
                break


def _number(file: Path) -> int | None:
    """The number in a file; None if there is none."""
    text = file.read_text().strip() if file.exists() else "max"
    return None if text == "max" else int(text)


@functools.cache
def _known(device: Device) -> int | None:
    return of(device)


def _exceeds(device: Device, size: int) -> int | None:
    """The device's memory, if so many bytes are more than that."""
    known = _known(device)
    if known is None or size <= known:
        return None
    now = of(device)  # limits may have been raised
    return now if now is not None and size > now else None


def bytes_of(spec: TensorSpec) -> int:
    """How many bytes a tensor has; where elements share memory, that memory counts."""
    stored = dtypes.stored(spec.dtype) if spec.device.narrows else dtypes.to_numpy(spec.dtype)
    return min(spec.numel, storage_size(spec.shape, spec.stride)) * stored.itemsize


def refuse_tensors(name: str, device: Device, specs: Iterable[TensorSpec | None]) -> None:
    """Refuses an operator with a result that is larger than the memory of its device.

    Args:
        name: of the operator.

    Raises:
        torch.OutOfMemoryError: that is so.
    """
    for spec in specs:
        if spec is None:
            continue
        size = bytes_of(spec)
        limit = _exceeds(device, size)
        if limit is not None:
            _raise(f"{name} makes a tensor {spec}, which takes {_text(size)}", device, limit)


def refuse_results(graph: Graph) -> None:
    """Refuses a program whose results are larger together than the memory of its device, before it is compiled.

    Raises:
        torch.OutOfMemoryError: that is so.
    """
    size = sum(map(bytes_of, graph.output_specs()))
    limit = _exceeds(graph.device, size)
    if limit is not None:
        _raise(f"the {len(graph.outputs)} results of a program take {_text(size)}", graph.device, limit)


def refuse_program(graph: Graph, compiled: Any) -> None:
    """Refuses a program whose buffers are larger together than the memory of its device, as XLA has planned them.

    One with operators that choose what they compute is not refused: it may never need all of them.

    Raises:
        torch.OutOfMemoryError: that is so.
    """
    if (
        graph.device.grid is not None
        or graph.is_collective
        or not all(c.is_ours or c.nested for c in graph.all_calls())
    ):
        return
    try:
        found = compiled.memory_analysis()
        parts = found.argument_size_in_bytes, found.output_size_in_bytes, found.temp_size_in_bytes
        size = sum(parts) - found.alias_size_in_bytes
    except Exception:  # a platform, or a program from the disk, that cannot say
        return
    limit = _exceeds(graph.device, size)
    if limit is not None:
        inputs, results, temporaries = map(_text, parts)
        what = f"a program takes {_text(size)} ({inputs} of inputs, {results} of results, {temporaries} in between)"
        _raise(what, graph.device, limit)


def _raise(what: str, device: Device, limit: int) -> None:
    line = errors.user_line()
    raise torch.OutOfMemoryError(
        f"{what}, and {device.torch_device} has {_text(limit)} of memory: make it smaller, or compute it in parts"
        + (f"\n  called at {line}" if line else "")
    )


def _text(size: int) -> str:
    number, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if number < 1024 or unit == "TiB":
            break
        number /= 1024
    return f"{number:.4g} {unit}"
