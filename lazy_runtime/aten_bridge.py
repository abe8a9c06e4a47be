"""Torch's own CPU kernels inside XLA:CPU programs, as custom calls (native/bridge.cpp).

Activations cross with their channels last, as the kernels want them (`layout.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from . import native

_HANDLERS = ("aten_convolution", "aten_convolution_backward")


@functools.cache
def available() -> bool:
    """Whether the bridge was built for this torch; loads and registers it the first time."""
    try:
        library = native.bridge()
    except native.NativeError:
        return False
    for name in _HANDLERS:
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(library, name)), platform="cpu")
    return True


def _ints(values: Sequence[int]) -> np.ndarray:
    return np.asarray(values, dtype=np.int64)


def _geometry(stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any, groups: int) -> dict:
    return {
        "stride": _ints(stride),
        "padding": _ints(padding),
        "dilation": _ints(dilation),
        "transposed": transposed,
        "output_padding": _ints(output_padding),
        "groups": np.int64(groups),
    }


def convolution(x: Any, weight: Any, shape: tuple[int, ...], *geometry: Any) -> Any:
    """`aten::convolution` without bias.

    Args:
        x: (batch, space..., channels).
        weight: as torch has it.
        shape: of the result, (batch, space..., channels).
        geometry: stride, padding, dilation, transposed, output_padding, groups.
    """
    call = jax.ffi.ffi_call("aten_convolution", jax.ShapeDtypeStruct(shape, x.dtype))
    return call(x, weight, **_geometry(*geometry))


def convolution_backward(
    grad: Any, x: Any, weight: Any, input_gradient: bool, weight_gradient: bool, *geometry: Any
) -> tuple[Any, Any]:
    """The gradients of `convolution` with respect to `x` and `weight`; None for one that is not asked for."""
    if not input_gradient and not weight_gradient:
        return None, None
    wanted = [x] * input_gradient + [weight] * weight_gradient
    call = jax.ffi.ffi_call(
        "aten_convolution_backward", [jax.ShapeDtypeStruct(like.shape, like.dtype) for like in wanted]
    )
    flags = {"input_gradient": input_gradient, "weight_gradient": weight_gradient}
    results = list(call(grad, x, weight, **flags, **_geometry(*geometry)))
    return results.pop(0) if input_gradient else None, results.pop(0) if weight_gradient else None
