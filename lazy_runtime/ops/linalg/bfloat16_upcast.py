"""bfloat16 on processors that multiply float32 faster.

Intel's processors without AMX have an instruction for products of bfloat16 that does half of what float32's does in the
same time, and older ones have none. A product of two bfloat16 numbers is exact in float32, which torch's kernels add
them up in, so that a product in float32, rounded at its end, is the same but for the order of the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch

from ...common import config
from ...lowering import aten_bridge
from ...lowering.layout import Reordered, logical
from .. import kernels
from ..kernels import Refused, Verdict

_NARROW = jnp.bfloat16
_WIDE = jnp.float32


def is_wanted(platform: str, dtype: Any) -> bool:
    """Whether products of this dtype, jax's or torch's, are better computed in float32."""
    return dtype in (_NARROW, torch.bfloat16) and bool(available(platform))


def accepts(platform: str, dtype: str) -> Verdict:
    """`is_wanted` for the dtype of this name, with the reason where they are not."""
    return (dtype == "bfloat16" or Refused(f"it is for bfloat16, not {dtype}")) and available(platform)


def available(platform: str) -> Verdict:
    """Whether the processor is slower at products of bfloat16 than at those of float32."""
    return kernels.on_cpu(platform) and (
        config.widens_bfloat16() or Refused("products of bfloat16 are fast here, or XLA_CPU_BFLOAT16_PRODUCTS says so")
    )


def widened(x: Any) -> Any:
    """`x`, an array, one in another order or a part of one, in float32 if it is bfloat16."""
    if getattr(x, "dtype", None) != _NARROW:
        return x
    if isinstance(x, Reordered):
        return x.like(widened(x.physical))
    return jax.ShapeDtypeStruct(x.shape, _WIDE) if isinstance(x, jax.ShapeDtypeStruct) else logical(x).astype(_WIDE)


def call(platform: str, name: str, arguments: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    """`aten_bridge.call` of a kernel that is mostly products."""
    if any(is_wanted(platform, getattr(x, "dtype", None)) for x in arguments):
        return call_widened(name, arguments, results)
    return aten_bridge.call(name, arguments, results)


def call_widened(
    name: str, arguments: Sequence[Any], results: Sequence[Any], then: Sequence[tuple[str, Sequence[Any]]] = ()
) -> list[Any]:
    """`aten_bridge.call` in float32, whose results are rounded at the end."""
    made = aten_bridge.call(name, [*map(widened, arguments)], [*map(widened, results)], then)
    return [_rounded(each, like) for each, like in zip(made, results, strict=True)]


def _rounded(x: Any, like: Any) -> Any:
    if x is None or x.dtype == like.dtype:
        return x
    return x.like(x.physical.astype(like.dtype)) if isinstance(x, Reordered) else x.astype(like.dtype)
