"""The tensor inside of torch's functional wrapper, and how it lies on several devices."""

from ..compat import jax_import as jax_import  # before any module in here imports jax
