"""Settings, most of them from the environment (`environment.py` describes the variables)."""

from __future__ import annotations

from typing import Literal

import torch

from . import environment, processor


def cpu_devices() -> int | None:
    """`CPU_NUM_DEVICES`: how many xla devices to make on the CPU; None leaves it to jax."""
    return environment.value("CPU_NUM_DEVICES")


def donation() -> bool:
    """`XLA_ENABLE_PARAM_ALIASING`: whether buffers that die with a step are given to XLA for its outputs."""
    return environment.value("XLA_ENABLE_PARAM_ALIASING")


def keeps_host_memory() -> bool:
    """`XLA_KEEP_HOST_MEMORY`: whether memory that CPU programs give back stays in the process."""
    return environment.value("XLA_KEEP_HOST_MEMORY")


def matmul_library() -> Literal["torch", "onednn", "xla"]:
    """`XLA_CPU_PRODUCTS`: whose kernels multiply matrices on the CPU.

    Returns:
        "torch": torch's, of float32 and float64; the default on Intel's processors, where torch has MKL.
        "onednn": oneDNN's, of float32; the default on AMD's.
        "xla": XLA's own.
    """
    chosen = environment.value("XLA_CPU_PRODUCTS")
    if chosen is not None:
        return chosen
    if processor.is_intel() and torch.backends.mkl.is_available():
        return "torch"
    return "onednn" if processor.is_amd() and torch.backends.mkldnn.is_available() else "xla"


def widens_bfloat16() -> bool:
    """`XLA_CPU_BFLOAT16_PRODUCTS`: whether products of bfloat16 are computed in float32 on the CPU."""
    chosen = environment.value("XLA_CPU_BFLOAT16_PRODUCTS")
    return not processor.has_fast_bfloat16() if chosen is None else chosen == "float32"


def winograd() -> bool:
    """`XLA_CPU_WINOGRAD`: whether convolutions of 3x3 are computed by Winograd's algorithm on the CPU."""
    return environment.value("XLA_CPU_WINOGRAD")


def direct_convolutions() -> bool:
    """`XLA_CPU_DIRECT_CONVOLUTIONS`: whether kernels of ours compute convolutions of 1x1 and of single channels."""
    return environment.value("XLA_CPU_DIRECT_CONVOLUTIONS")


def strict_fallback() -> bool:
    """`XLA_STRICT_FALLBACK`: whether an operator without a lowering raises instead of being called."""
    return environment.value("XLA_STRICT_FALLBACK") if _strict_fallback is None else _strict_fallback


def set_strict_fallback(strict: bool | None) -> None:
    """Overrides `XLA_STRICT_FALLBACK`; None follows the environment again."""
    global _strict_fallback
    _strict_fallback = strict


_strict_fallback: bool | None = None


def eager() -> bool:
    """`XLA_USE_EAGER_DEBUG_MODE`: start in eager mode."""
    return environment.value("XLA_USE_EAGER_DEBUG_MODE")


def sync_waits() -> bool:
    """`XLA_SYNC_WAIT`: whether every sync waits until the program has run."""
    return environment.value("XLA_SYNC_WAIT")


def op_by_op(reading: bool) -> bool:
    """`XLA_GET_TENSORS_OPBYOP` (where a value is read) or `XLA_SYNC_TENSORS_OPBYOP`: whether pending operators run one
    by one.
    """
    name = "GET_TENSORS_OPBYOP" if reading else "SYNC_TENSORS_OPBYOP"
    return environment.value(f"XLA_{name}") or environment.value(name)


def debug_level() -> int:
    """`PT_XLA_DEBUG_LEVEL`, or 2 under its older name `PT_XLA_DEBUG=1`."""
    return environment.value("PT_XLA_DEBUG_LEVEL") or (2 if environment.value("PT_XLA_DEBUG") else 0)


def dynamo_debug() -> bool:
    """`XLA_DYNAMO_DEBUG`: whether each graph that Dynamo hands over is printed."""
    return environment.value("XLA_DYNAMO_DEBUG")


def hlo_debug() -> bool:
    """`XLA_HLO_DEBUG`: whether the lines of the program stand in HLO's metadata."""
    return environment.value("XLA_HLO_DEBUG")
