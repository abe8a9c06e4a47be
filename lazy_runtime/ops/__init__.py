"""Lowerings of aten operators to jax, a folder per family; `registry.py` says how to write one."""

from __future__ import annotations

import importlib
import pkgutil

from ..compat import jax_import as jax_import  # before any module in here imports jax


def load_all() -> None:
    """Imports every family, so that its lowerings stand in the table."""
    for module in pkgutil.walk_packages(__path__, f"{__name__}."):
        importlib.import_module(module.name)
