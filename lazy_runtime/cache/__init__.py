"""Compiled programs on disk, which later processes find."""

from ..compat import jax_import as jax_import  # before any module in here imports jax
