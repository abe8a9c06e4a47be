"""`aten::_foreach_*`: what the multi-tensor optimizers call.

One program is compiled of all of it anyway, so each is its per-tensor operator over the lists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..compat.torch import DisableTorchDispatch, OpOverload, operator_name_of, overload_name_of, tree_map
from ..execution import transfer
from ..tensor.xla_tensor import XLATensor

aten = torch.ops.aten


def _norm(x: torch.Tensor, ord: Any = 2, dtype: torch.dtype | None = None) -> torch.Tensor:
    return aten.linalg_vector_norm(x, ord, dtype=dtype)


# per-tensor operators of another name than their list form's
_NAMES: dict[str, Any] = {"norm": _norm, "max": aten.max.default, "zero": aten.zero.default}
_SCALAR_NAMES = {"maximum": aten.clamp_min, "minimum": aten.clamp_max}


def decomposition(func: OpOverload) -> Callable[..., list[torch.Tensor]] | None:
    """The function that computes a functional `aten::_foreach_*` overload tensor by tensor; None for any other."""
    if func.namespace != "aten" or not operator_name_of(func).startswith("_foreach_"):
        return None
    name = operator_name_of(func).removeprefix("_foreach_")
    with_scalars = overload_name_of(func) in ("Scalar", "ScalarList")
    each = (_SCALAR_NAMES.get(name) if with_scalars else None) or _NAMES.get(name) or getattr(aten, name, None)
    if each is None:
        return None
    takes_value = name in ("addcmul", "addcdiv")

    def run(*args: Any, **kwargs: Any) -> list[torch.Tensor]:
        lists = [arg for arg in args if isinstance(arg, list | tuple)]
        count = len(lists[0])
        if any(len(each) != count for each in lists) or _takes_a_look(name, args):
            _ask_cpu(func, args, kwargs)
        if takes_value and len(args) == 4:  # a keyword of the per-tensor operator; `.Tensor` has a 1-d tensor of them
            args, value = args[:3], args[3]
            if isinstance(value, torch.Tensor):
                value = (transfer.to_host(value) if isinstance(value, XLATensor) else value).tolist()
                if len(value) != count:
                    raise RuntimeError(
                        f"Expected length of scalars to match input of length {count} but got {len(value)} instead."
                    )
            kwargs["value"] = value

        def pick(arg: Any, i: int) -> Any:
            return arg[i] if isinstance(arg, list | tuple) else arg

        return [
            each(*(pick(arg, i) for arg in args), **{key: pick(arg, i) for key, arg in kwargs.items()})
            for i in range(count)
        ]

    return run


def _takes_a_look(name: str, args: Any) -> bool:
    """Whether the list form refuses what the per-tensor operator takes, or words it in its own way."""
    if name in ("norm", "max"):
        return any(x.numel() == 0 for x in args[0])
    return name in ("add", "mul", "div") and isinstance(args[1], torch.Tensor) and args[1].dim() > 0


def _ask_cpu(func: OpOverload, args: Any, kwargs: Any) -> None:
    """Calls the operator on CPU tensors of one expanded element, for its error if it has one."""

    def stand_in(x: Any) -> Any:
        return torch.zeros((), dtype=x.dtype, device="cpu").expand(x.shape) if isinstance(x, torch.Tensor) else x

    with DisableTorchDispatch():
        func(*tree_map(stand_in, args), **kwargs)
