"""Functions that are recorded as one call: loops that stay in the program, and functions of jax."""

from ..compat import jax_import as jax_import  # before any module in here imports jax
