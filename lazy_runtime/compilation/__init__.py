"""From recorded nodes to an executable, which is made once per graph."""

from ..compat import jax_import as jax_import  # before any module in here imports jax
