"""PyTorch/XLA's `xla_op_registry` (`xor`): operators that a Python function builds operation by operation."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable
from typing import Any

from ..utils.utils import getenv_as
from . import xla_builder as xb


class Op:
    """An operator on xla tensors. It is built once for each kind of arguments.

    Args:
        name: of the operator.
        opfn: builds it: gets an `xla_builder.Op` for each tensor, and the keyword arguments; returns the result, and
            several as `xla_builder.Op.tuple`.
    """

    def __init__(self, name: str, opfn: Callable[..., xb.Op]):
        self._name = name
        self._opfn = opfn
        self._lock = threading.Lock()
        self._computations: dict[Hashable, Any] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Records the operator.

        Args:
            args: tensors.
            kwargs: Python values, given to the function that builds it.

        Returns:
            its result; a list of them where there are several.
        """
        shapes = xb.tensor_shape(list(args))
        key = repr(shapes), repr(sorted(kwargs.items()))
        with self._lock:
            computation = self._computations.get(key)
            if computation is None:
                computation = xb.create_computation(self._name, self._opfn, shapes, **kwargs)
                self._computations[key] = computation
                if getenv_as("XLA_OP_PRINT_COMPUTATIONS", bool, False):
                    print(xb.get_computation_hlo(computation), file=sys.stderr)
        results = xb.user_computation(f"xla::_op_{self._name}", args, computation)
        return results[0] if len(results) == 1 else results


def register(name: str, opfn: Callable[..., xb.Op]) -> Op:
    """The operator that a function builds; see `Op`."""
    return Op(name, opfn)
