"""Operators of the user's that write to their arguments, within a compiled graph.

AOTAutograd makes such a call pure: a higher-order operator has the call's arguments, and the memory that they are views
of as it is before, and gives the memory as it is afterwards. Torch's own implementation of that, on copies, becomes an
operator with a name, which a program calls like any other that has no lowering (`lazy_runtime/recording/fallback.py`).
"""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from lazy_runtime.compat.torch import tree_flatten, tree_leaves, tree_unflatten
from lazy_runtime.compat.tracing import auto_functionalized_dense, auto_functionalized_v2_dense
from lazy_runtime.recording import dispatch
from lazy_runtime.tensor.xla_tensor import XLATensor

from . import fx

_NAMESPACE = "openxla_functional"
_library = torch.library.Library(_NAMESPACE, "DEF")
_lock = threading.Lock()


@fx.higher_order("auto_functionalized_v2")
def auto_functionalized_v2(op: Any, **kwargs: Any) -> Any:
    return _pure(auto_functionalized_v2_dense, op, kwargs)


@fx.higher_order("auto_functionalized")
def auto_functionalized(op: Any, **kwargs: Any) -> Any:
    return _pure(auto_functionalized_dense, op, kwargs)


def _pure(dense: Callable[..., Any], op: Any, kwargs: dict[str, Any]) -> Any:
    """Records the call.

    Args:
        dense: torch's implementation of it, for tensors with memory.
        op: the operator.
        kwargs: its arguments, and where they lie.
    """
    leaves, structure = tree_flatten(kwargs)
    tensors = [leaf for leaf in leaves if isinstance(leaf, XLATensor)]
    others = [None if isinstance(leaf, XLATensor) else (leaf,) for leaf in leaves]

    def run(given: Sequence[torch.Tensor]) -> Any:
        remaining = iter(given)
        filled = [next(remaining) if other is None else other[0] for other in others]
        return dense(op, **tree_unflatten(filled, structure))

    meaning = repr((dense.__name__, str(op), others, str(structure)))
    with torch.no_grad():
        shapes, results = tree_flatten(run([tensor.spec.meta() for tensor in tensors]))
    target = _named(op, meaning, run)
    made = iter(dispatch.dispatch(XLATensor, target, (), (tensors,), {}))
    return tree_unflatten([next(made) if isinstance(x, torch.Tensor) else x for x in shapes], results)


def _named(op: Any, meaning: str, run: Callable[[Sequence[torch.Tensor]], Any]) -> Any:
    """The operator, which is registered at its first use. Its name says what it does in later processes too, where
    programs that call it are found on disk.

    Args:
        meaning: all that `run` depends on but its tensors.
    """
    name = f"{str(op).replace('.', '_')}_{hashlib.sha256(meaning.encode()).hexdigest()[:16]}"
    with _lock:
        packet = getattr(torch.ops, _NAMESPACE)
        if not hasattr(packet, name):
            _library.define(f"{name}(Tensor[] tensors) -> Tensor[]")
            for key in ("CPU", "Meta"):
                _library.impl(name, functools.partial(_tensors_of, run), key)
        return getattr(packet, name).default


def _tensors_of(run: Callable[[Sequence[torch.Tensor]], Any], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(run(tensors)) if isinstance(leaf, torch.Tensor)]
