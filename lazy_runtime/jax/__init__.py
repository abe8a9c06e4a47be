"""jax beside torch: functions of jax as operators, and arrays without a copy.

    import jax.numpy as jnp
    import lazy_runtime.jax

    y = lazy_runtime.jax.call(jnp.sinc, x)  # x and y are tensors, and y.sum().backward() works
    params, f = lazy_runtime.jax.function(model)  # jax.jit(f)(params, array) gives arrays

Inside this package `import jax` means jax itself.
"""

from __future__ import annotations

from .arrays import asarray, from_array
from .calls import call, operator
from .modules import function

__all__ = ["asarray", "call", "from_array", "function", "operator"]
