"""Runs what is pending, binds the results, and carries data between the host and devices."""

from ..compat import jax_import as jax_import  # before any module in here imports jax
