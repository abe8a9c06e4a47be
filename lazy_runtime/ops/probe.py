"""What torch's CPU kernels refuse, asked of them on tensors of one element.

The meta kernels of many random operators let through dtypes and numbers that the CPU kernels raise for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from ..compat.torch import DisableTorchDispatch, OpOverload, schema_of, tree_leaves
from .registry import overload


def probe(target: OpOverload, args: Any, kwargs: dict[str, Any]) -> None:
    """Calls the operator on CPU tensors of ones whose sizes are 1 (or 0, where they are). No random number is used up.

    Raises:
        RuntimeError, NotImplementedError, ...: what torch's CPU kernel raises for these dtypes, ranks and numbers.
    """
    options = {name: _small(arg) for name, arg in kwargs.items()}
    if "device" in options:
        options["device"] = torch.device("cpu")
    quietly(target, *map(_small, args), **options)


def quietly(target: Any, *args: Any, **kwargs: Any) -> None:
    """Calls an operator on CPU tensors without using up torch's random numbers."""
    names = [argument.name for argument in schema_of(target).arguments]
    keeping: Any = contextlib.nullcontext()
    if "generator" not in names:
        keeping = torch.random.fork_rng(devices=())
    elif names.index("generator") < len(args):
        place = names.index("generator")
        args = (*args[:place], torch.Generator("cpu"), *args[place + 1 :])
    else:
        kwargs["generator"] = torch.Generator("cpu")
    with keeping, DisableTorchDispatch():
        target(*args, **kwargs)


def _small(arg: Any) -> Any:
    if isinstance(arg, torch.Tensor):
        return torch.ones(_small(arg.shape), dtype=arg.dtype, device="cpu")
    if isinstance(arg, list | tuple):  # sizes, which may be symbolic
        return [0 if size == 0 else 1 for size in arg]
    return None if isinstance(arg, torch.Generator) else arg


def probed(name: str, result: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """For `registry.op(infer=...)`: the operator's meta kernel after a probe.

    Args:
        name: of the operator.
        result: gives the meta tensors from the operator's arguments where torch has no meta kernel.
    """
    target: Any = overload(name)

    def infer(*args: Any, **kwargs: Any) -> Any:
        args = tuple(None if isinstance(arg, torch.Generator) else arg for arg in args)
        kwargs = {key: None if isinstance(arg, torch.Generator) else arg for key, arg in kwargs.items()}
        if any(isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu" for leaf in tree_leaves(args)):
            return target(*args, **kwargs)  # called again, for the error that names the sizes
        probe(target, args, kwargs)
        return target(*args, **kwargs) if result is None else result(*args, **kwargs)

    infer.result = result  # type: ignore[attr-defined]
    return infer


def unprobed(infer: Callable[..., Any]) -> Callable[..., Any]:
    """The same without the probe: where fake tensors are, CPU kernels cannot be called."""
    return getattr(infer, "result", None) or infer


def last_integer(dtype: torch.dtype) -> int:
    """The last integer up to which a real dtype holds all of them."""
    if dtype.is_floating_point:
        return round(2 / torch.finfo(dtype).eps)
    return 1 if dtype == torch.bool else torch.iinfo(dtype).max
