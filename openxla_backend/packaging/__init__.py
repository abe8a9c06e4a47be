"""Compiled functions that leave the process: `lazy_runtime.package` and `lazy_runtime.load`.

Who loads a package imports nothing of what it takes to make one: no Dynamo, no `torch.export`.
"""

from lazy_runtime.compat import jax_import as jax_import  # before any module in here imports jax
