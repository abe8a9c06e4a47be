"""The processor that the process runs on, as far as code and the choice of kernels depend on it."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
from pathlib import Path


@functools.cache
def _fields() -> dict[str, str]:
    """What Linux says of the first core, by name; nothing on other systems."""
    try:
        text = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return {}
    lines = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def _field(*names: str) -> str:
    return next((found for name in names if (found := _fields().get(name))), "")


@functools.cache
def description() -> str:
    """Model, instruction sets and number of cores: XLA:CPU compiles for exactly these."""
    model = _field("model name", "CPU part") or platform.processor() or platform.machine()
    features = " ".join(sorted(_field("flags", "Features", "isa").split()))
    digest = hashlib.sha256(features.encode()).hexdigest()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{model} ({digest[:12]}), {cores} cores, NPROC={os.environ.get('NPROC', '')}"


def is_intel() -> bool:
    """Whether Intel made it: its math library (MKL) is at its best on these alone."""
    return _field("vendor_id") == "GenuineIntel"


def is_amd() -> bool:
    """Whether AMD made it."""
    return _field("vendor_id") == "AuthenticAMD"


def has_fast_bfloat16() -> bool:
    """Whether its products of bfloat16 are faster than those of float32. Intel's AVX-512 does half as many of them in
    the same time (measured: 88 GFLOP/s on one core, 177 of float32), AMD's twice as many.
    """
    features = _field("flags", "Features", "isa").split()
    if not features:  # not Linux: nothing is known
        return True
    if _field("flags"):  # of x86
        return "amx_bf16" in features or ("avx512_bf16" in features and not is_intel())
    return "bf16" in features
