"""What the machine and the models are, and what the device does at best: products and copies, by torch alone."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import environment, measure, models

QUERY = "name,driver_version,memory.total,power.limit,clocks.max.sm,clocks.max.memory"

#: Name → dtype of the matrices, and the precision that float32's products have.
PRODUCTS: dict[str, tuple[str, str]] = {
    "float32": ("float32", "highest"),
    "tf32": ("float32", "high"),
    "bfloat16": ("bfloat16", "highest"),
}


def collect(dry: bool) -> dict[str, Any]:
    """Versions and machine, and what its driver says of the GPU."""
    return {**environment.collect(), "gpu": {} if dry else gpu()}


def gpu() -> dict[str, str]:
    """What the driver says of the first GPU; its name alone where `nvidia-smi` is missing."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"]
        line = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.splitlines()[0]
        return dict(zip(QUERY.split(","), (field.strip() for field in line.split(",")), strict=True))
    return {"name": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}


def parameter_bytes(names: Sequence[str]) -> dict[str, int]:
    """The sizes of models' parameters; those that cannot be built without memory are missing."""
    found: dict[str, int] = {}
    for name in names:
        with contextlib.suppress(Exception), torch.device("meta"):
            found[name] = sum(parameter.nbytes for parameter in models.build(name).parameters())
    return found


def rates(device: str, size: int, copied_mib: int, rounds: int) -> dict[str, float]:
    """The speed of square products, in 10^12 operations a second, and of copies, in 10^9 bytes read and written.

    Args:
        size: rows and columns of the matrices.
        copied_mib: of the tensor that is copied.
        rounds: of which the fastest counts.
    """
    found = {name: _product(device, size, rounds, *kind) for name, kind in PRODUCTS.items()}
    source = torch.ones(copied_mib << 20, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = _fastest(lambda: target.copy_(source), device, rounds)
    return {**found, "copy": 2 * source.nbytes / seconds / 1e9}


def _product(device: str, size: int, rounds: int, dtype: str, precision: str) -> float:
    torch.set_float32_matmul_precision(precision)
    # products of zeros are faster than those of numbers: they switch fewer gates
    left, right = (torch.randn(size, size, device=device).to(getattr(torch, dtype)) for _ in range(2))
    out = torch.empty_like(left)
    return 2 * size**3 / _fastest(lambda: torch.mm(left, right, out=out), device, rounds) / 1e12


def _fastest(call: Callable[[], object], device: str, rounds: int, calls: int = 3) -> float:
    """Seconds of a call, the least of the rounds' means. The first round is not counted."""

    def run() -> None:
        for _ in range(calls):
            call()
        if device == "cuda":
            torch.cuda.synchronize()

    run()
    return min(measure.seconds(run) for _ in range(rounds)) / calls
