"""jax, as a module that may be the first to import it finds it: `from ..compat.jax_import import jax`.

jax draws numbers from numpy's global generator when it is imported (the waiting times of a decorator's default in
`jax/_src/clusters/k8s_cluster.py`). A program that has seeded numpy, and then uses xla for the first time, would go on
with other numbers than on the CPU: a data set would be shuffled and augmented otherwise.
"""

from __future__ import annotations

import numpy as np

_state = np.random.get_state(legacy=False)
import jax  # noqa: E402

np.random.set_state(_state)

__all__ = ["jax"]
