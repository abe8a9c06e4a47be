"""Ranks: processes, or threads of one, that compute together."""

from ..compat import jax_import as jax_import  # before any module in here imports jax
