"""What a lowering works with: layouts, checks that run on the device, torch's kernels as custom calls, precision."""

from ..compat import jax_import as jax_import  # before any module in here imports jax
