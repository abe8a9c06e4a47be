"""What torch checks of the arguments of a random operator, and makes of them, at each call.

Their numbers are inputs of the graph (a standard deviation may follow a schedule), so two calls that differ in them
share what `dispatch.record` keeps for a call; the check cannot be a part of that.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from ..compat.torch import OpOverload
from ..ops import registry
from ..ops.probe import last_integer, probe
from ..tensor.xla_tensor import XLATensor
from . import dispatch

_INT64_MIN = -(2**63)
_RANDOM_FROM: Any = registry.overload("aten::random.from")


@dispatch.handler(
    "aten::uniform", "aten::normal_functional", "aten::normal.Tensor_float", "aten::exponential", "aten::cauchy",
    "aten::log_normal", "aten::bernoulli.p", "aten::geometric", "aten::random",
)  # fmt: skip
def _with_numbers(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Operators (tensor, numbers...)."""
    x, *numbers = args
    _accept(func, x.dtype, 0 in x.shape, *numbers)
    return dispatch.record(registry.table[func], args, kwargs)


@functools.lru_cache(maxsize=4096)
def _accept(func: OpOverload, dtype: torch.dtype, is_empty: bool, *numbers: float) -> None:
    """Raises torch's error if it does not take these numbers with this dtype. For empty tensors it checks less."""
    probe(func, (torch.empty(0 if is_empty else 1, dtype=dtype, device="meta"), *numbers), {})


@dispatch.handler("aten::random.from", "aten::random.to")
def _random_between(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    x, *bounds = args
    _accept(func, x.dtype, 0 in x.shape, *bounds)
    bounds = _bounds(x.dtype, *bounds) if len(bounds) == 2 else _bounds(x.dtype, 0, *bounds)[1:]
    return dispatch.record(registry.table[func], (x, *bounds), kwargs)


@dispatch.handler(
    "aten::randint", "aten::randint.low", "aten::randint_like", "aten::randint_like.low_dtype",
    "aten::randint_like.generator", "aten::randint_like.low_generator_dtype",
)  # fmt: skip
def _randint(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Operators (tensor, bounds...) or (bounds..., sizes)."""
    like = isinstance(args[0], XLATensor)
    first, bounds, last = (args[:1], args[1:], ()) if like else ((), args[:-1], args[-1:])
    dtype = kwargs.get("dtype") or (args[0].dtype if like else torch.int64)
    low, high = bounds if len(bounds) == 2 else (0, *bounds)
    _accept(_RANDOM_FROM, dtype, 0 in (args[0].shape if like else args[-1]), low, high)
    low, high = _bounds(dtype, low, high)
    return dispatch.record(registry.table[func], (*first, *(low, high)[-len(bounds) :], *last), kwargs)


@functools.lru_cache(maxsize=4096)
def _bounds(dtype: torch.dtype, low: int, high: int | None) -> tuple[int, int | None]:
    """The bounds of the integers that are drawn for a dtype, which may not hold all of those asked for.

    Torch's `update_from` and `update_to` (aten/src/ATen/native/DistributionTemplates.h): what is drawn and then rounded
    must not leave [low, high). An open end is replaced but for int64's and for that of all 64-bit integers, from which
    torch rounds.
    """
    if high is None:
        if low == _INT64_MIN or dtype == torch.int64:
            return low, None
        high = last_integer(dtype) + 1
    elif dtype.is_floating_point:
        rounded = _rounded(high - 1, dtype)
        if rounded >= high:
            high = rounded - _spacing(high - 1, dtype)
    if dtype.is_floating_point:
        rounded = _rounded(low + 1, dtype)
        if rounded < low:
            low = rounded + _spacing(low + 1, dtype)
    return low, high


def _rounded(number: int, dtype: torch.dtype) -> int:
    return int(torch.tensor(number, dtype=torch.int64, device="cpu").to(dtype).to(torch.int64))


def _spacing(number: int, dtype: torch.dtype) -> int:
    """Distance of the dtype's numbers next to this one."""
    digits = last_integer(dtype).bit_length() - 1
    return 1 << (abs(number).bit_length() - 1 - digits + 1)


@dispatch.handler(
    "aten::_standard_gamma", "aten::_sample_dirichlet", "aten::poisson", "aten::binomial",
    "aten::rrelu_with_noise_functional",
)  # fmt: skip
def _with_generator(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Operators whose schema has the generator behind the positional arguments; `record` looks for it by its name."""
    if isinstance(args[-1], torch.Generator):
        args, kwargs = args[:-1], {**kwargs, "generator": args[-1]}
    return dispatch.record(registry.table[func], args, kwargs)


@dispatch.handler("aten::randint_like.Tensor", "aten::randint_like.Tensor_generator")
def _randint_like_tensor(func: Any, args: tuple, kwargs: dict[str, Any]) -> XLATensor:
    x, high = args
    if isinstance(high, XLATensor):
        if dispatch.current_trace() is None:
            raise RuntimeError("high must be a scalar tensor and on CPU")
        return dispatch.record(registry.table[func], args, kwargs)
    probe(func, (x, high), kwargs)
    return dispatch.dispatch(XLATensor, torch.ops.aten.randint_like.default, (), (x, int(high)), kwargs)
