"""`aten::_foreach_*`: what the multi-tensor optimizers call.

One program is compiled of all of it anyway, so each is its per-tensor operator over the lists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten

# per-tensor operators of another name than their list form's
_NAMES = {"norm": aten.linalg_vector_norm, "max": aten.max.default, "zero": aten.zero.default}
_SCALAR_NAMES = {"maximum": aten.clamp_min, "minimum": aten.clamp_max}


def decomposition(func: torch._ops.OpOverload) -> Callable[..., list[torch.Tensor]] | None:
    """The function that computes a functional `aten::_foreach_*` overload tensor by tensor; None for any other."""
    if func.namespace != "aten" or not func._opname.startswith("_foreach_"):
        return None
    name = func._opname.removeprefix("_foreach_")
    with_scalars = func._overloadname in ("Scalar", "ScalarList")
    each = (_SCALAR_NAMES.get(name) if with_scalars else None) or _NAMES.get(name) or getattr(aten, name, None)
    if each is None:
        return None
    takes_value = name in ("addcmul", "addcdiv")

    def run(*args: Any, **kwargs: Any) -> list[torch.Tensor]:
        if takes_value and len(args) == 4:  # a keyword of the per-tensor operator; `.Tensor` has a 1-d CPU tensor
            args, value = args[:3], args[3]
            kwargs["value"] = value.tolist() if isinstance(value, torch.Tensor) else value
        count = len(next(arg for arg in args if isinstance(arg, list | tuple)))

        def pick(arg: Any, i: int) -> Any:
            return arg[i] if isinstance(arg, list | tuple) else arg

        return [
            each(*(pick(arg, i) for arg in args), **{key: pick(arg, i) for key, arg in kwargs.items()})
            for i in range(count)
        ]

    return run
