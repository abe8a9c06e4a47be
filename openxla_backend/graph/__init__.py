"""From the FX graph that AOTAutograd gives to an `ir.Graph`."""

from lazy_runtime.compat import jax_import as jax_import  # before any module in here imports jax
