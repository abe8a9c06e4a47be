"""Lowerings of aten operators to jax, one file per family; `registry.py` says how to write one."""

from __future__ import annotations

import importlib
import pkgutil


def load_all() -> None:
    """Imports every family, so that its lowerings stand in the table."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
