"""Jax beside torch. PyTorch/XLA has to keep the two runtimes apart; here jax's client is the one that xla runs on."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, TypeVar

_Result = TypeVar("_Result")


def jax_import_guard() -> None:
    """Brings xla's devices up. Jax's devices are the same ones, as many as `CPU_NUM_DEVICES` asks for, from then on.

    Raises:
        RuntimeError: there are no devices of the platform that `PJRT_DEVICE` chooses.
    """
    from ...platform import xla_devices

    xla_devices.start()


@contextlib.contextmanager
def jax_env_context() -> Iterator[None]:
    """A block in which jax's devices are xla's."""
    jax_import_guard()
    yield


def requires_jax(func: Callable[..., _Result]) -> Callable[..., _Result]:
    """A function that runs in `jax_env_context`."""

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> _Result:
        with jax_env_context():
            return func(*args, **kwargs)

    return wrapper


def maybe_get_jax(log: bool = True) -> ModuleType:
    """The module jax, whose devices are xla's. It is there wherever this package is, so there is nothing to log."""
    with jax_env_context():
        return importlib.import_module("jax")


def maybe_get_torchax() -> ModuleType | None:
    """The package torchax with its modules `tensor`, `interop` and `ops.mappings`; None where it is not installed."""
    with jax_env_context(), contextlib.suppress(ImportError):
        for name in ("tensor", "interop", "ops.mappings"):
            importlib.import_module(f"torchax.{name}")
        return importlib.import_module("torchax")
    return None
