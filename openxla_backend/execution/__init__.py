"""Calls of a compiled program, on xla tensors and on plain ones."""

from lazy_runtime.compat import jax_import as jax_import  # before any module in here imports jax
