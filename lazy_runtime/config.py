"""Settings from the environment, under PyTorch/XLA's names where it has them; each is read when it is needed."""

from __future__ import annotations

import os


def _flag(name: str, default: bool) -> bool:
    value = os.environ.get(name)
    return default if value is None else value.strip().lower() not in ("", "0", "false", "off", "no")


def _integer(name: str) -> int | None:
    value = os.environ.get(name)
    if not value:
        return None
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"the environment variable {name} must be an integer, got {value!r}") from None


def cpu_devices() -> int | None:
    """`CPU_NUM_DEVICES`: how many xla devices to make on the CPU; None leaves it to jax."""
    count = _integer("CPU_NUM_DEVICES")
    if count is not None and count < 1:
        raise ValueError(f"CPU_NUM_DEVICES must be at least 1, got {count}")
    return count


def donation() -> bool:
    """`XLA_ENABLE_PARAM_ALIASING`: whether buffers that die with a step are given to XLA for its outputs."""
    return _flag("XLA_ENABLE_PARAM_ALIASING", True)


def strict_fallback() -> bool:
    """`XLA_STRICT_FALLBACK`: whether an operator without a lowering raises instead of being called."""
    return _flag("XLA_STRICT_FALLBACK", False) if _strict_fallback is None else _strict_fallback


def set_strict_fallback(strict: bool | None) -> None:
    """Overrides `XLA_STRICT_FALLBACK`; None follows the environment again."""
    global _strict_fallback
    _strict_fallback = strict


_strict_fallback: bool | None = None


def eager() -> bool:
    """`XLA_USE_EAGER_DEBUG_MODE`: start in eager mode."""
    return _flag("XLA_USE_EAGER_DEBUG_MODE", False)
