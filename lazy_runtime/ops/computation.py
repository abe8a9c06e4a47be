"""A jax function as one operator: `lazy_runtime::computation(Tensor[] tensors, str digest) -> Tensor[]`.

The function is traced once, to a jaxpr. A digest of its StableHLO names it, so that equal functions are one call, and a
later process finds the program on disk. What the trace depended on (jax's flags, closed-over values) is in the jaxpr.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.extend.core import jaxpr_as_fun

from ..ir import dtypes
from ..tensor import host_arrays
from .registry import op

_library = torch.library.Library("lazy_runtime", "FRAGMENT")
_library.define("computation(Tensor[] tensors, str digest) -> Tensor[]")


class Computation(NamedTuple):
    """A traced function of arrays.

    Attributes:
        digest: SHA-256 of its StableHLO in hexadecimal; what `lazy_runtime::computation` is told.
        function: arrays → list of arrays; for use within a jax trace.
        inputs: shapes and dtypes of what it takes.
        outputs: shapes and dtypes of what it gives.
        text: its StableHLO.
    """

    digest: str
    function: Callable[..., Sequence[jax.Array]]
    inputs: tuple[jax.ShapeDtypeStruct, ...]
    outputs: tuple[jax.ShapeDtypeStruct, ...]
    text: str


_computations: dict[str, Computation] = {}

_WIDE = frozenset({"int64", "uint64", "float64", "complex128"})


def trace(
    function: Callable[..., Sequence[Any]],
    inputs: Sequence[jax.ShapeDtypeStruct],
    platform: str,
    x64: bool | None = None,
) -> Computation:
    """Traces a jax function, and keeps it for the operator.

    Args:
        function: of as many arrays as there are inputs; gives a list of arrays. It must be pure.
        platform: what jax calls the device's, for functions that differ by it.
        x64: whether jax keeps 64-bit types meanwhile. By default it does where an input is of one, or jax's flag says
            so: the function's own constants (`jnp.ones`) then are as where jax runs alone.

    Raises:
        jax.errors.UnexpectedTracerError: the function reads what another trace has left behind.
    """
    if x64 is None:
        x64 = bool(jax.config.jax_enable_x64) or any(str(each.dtype) in _WIDE for each in inputs)  # type: ignore[attr-defined]
    with jax.enable_x64(x64):
        traced = jax.jit(function, keep_unused=True).trace(*inputs)
        if len(traced.jaxpr.in_avals) != len(inputs):
            raise jax.errors.UnexpectedTracerError(
                "the function reads an array of another function that jax has traced: an array that is kept while jax "
                "traces has no value. Have that function return it"
            )
        text = traced.lower(lowering_platforms=(platform,)).as_text()
    digest = hashlib.sha256(text.encode()).hexdigest()
    known = _computations.get(digest)
    if known is None:
        outputs = tuple(jax.ShapeDtypeStruct(each.shape, each.dtype) for each in traced.out_info)
        known = Computation(digest, jaxpr_as_fun(traced.jaxpr), tuple(inputs), outputs, text)
        known = _computations.setdefault(digest, known)
    return known


def _checked(tensors: Sequence[torch.Tensor], digest: str) -> Computation:
    computation = _computations[digest]
    given = [(tuple(x.shape), x.dtype) for x in tensors]
    taken = [(each.shape, dtypes.to_torch(each.dtype)) for each in computation.inputs]
    if given != taken:
        raise RuntimeError(
            f"the computation takes {_shown(taken)}, got {_shown(given)}: build it for the tensors that it is "
            "called with"
        )
    return computation


def _empty(tensors: Sequence[torch.Tensor], digest: str) -> list[torch.Tensor]:
    outputs = _checked(tensors, digest).outputs
    return [torch.empty(each.shape, dtype=dtypes.to_torch(each.dtype), device="meta") for each in outputs]


def _on_cpu(tensors: Sequence[torch.Tensor], digest: str) -> list[torch.Tensor]:
    found = _checked(tensors, digest)
    with dtypes.x64(), jax.default_device(jax.devices("cpu")[0]):
        results = jax.jit(found.function)(*[host_arrays.to_numpy(x.contiguous()) for x in tensors])
    return [host_arrays.from_numpy(np.array(x)) for x in results]


def _shown(kinds: Sequence[tuple[tuple[int, ...], torch.dtype]]) -> str:
    return ", ".join(f"{str(dtype).removeprefix('torch.')}{list(shape)}" for shape, dtype in kinds) or "nothing"


_library.impl("computation", _empty, "Meta")
_library.impl("computation", _on_cpu, "CPU")


@op("lazy_runtime::computation")
def computation(tensors, digest, *, out):
    found = _computations[digest]
    # an xla device may store fewer bits than torch says (`dtypes.narrowed`)
    arrays = [x.astype(each.dtype) for x, each in zip(tensors, found.inputs, strict=True)]
    results = found.function(*arrays)
    # numbers that the trace has found are no arrays
    return [jnp.asarray(x, dtypes.to_numpy(spec.dtype)) for x, spec in zip(results, out, strict=True)]
