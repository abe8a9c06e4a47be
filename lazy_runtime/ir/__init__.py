"""The graph that both producers build, the looks of its tensors, and their dtypes."""

from ..compat import jax_import as jax_import  # before any module in here imports jax
