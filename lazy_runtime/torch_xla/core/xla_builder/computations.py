"""Computations as functions of xla tensors, from builders, from HLO, and from jax."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import torch

from ....compat.jaxlib import hlo_to_stablehlo, serialize_portable_artifact, stablehlo
from ....ir import dtypes
from ....ops import computation as operator
from ....platform import xla_devices
from .expressions import Computation
from .shapes import to_aval


def device_of(tensors: Sequence[Any]) -> xla_devices.Device:
    """The device of the first tensor; the current one where there is none."""
    return next((xla_devices.get(each.device) for each in tensors if each.device.type == "xla"), xla_devices.get())


def call(traced: operator.Computation, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Records a traced function of xla tensors; CPU tensors are copied to the device of the others.

    Raises:
        RuntimeError: the tensors are not of the shapes and dtypes that it was traced for.
    """
    if len(tensors) != len(traced.inputs):
        raise RuntimeError(f"the computation takes {len(traced.inputs)} tensors, got {len(tensors)}")
    device = device_of(tensors).torch_device
    given = [each.to(device) for each in tensors]
    if given:
        return torch.ops.lazy_runtime.computation(given, traced.digest)
    return _without_operands(traced, device)


def _without_operands(traced: operator.Computation, device: torch.device) -> list[torch.Tensor]:
    """Torch finds a device by an operand, so there is one that the function does not look at."""
    unused = jax.ShapeDtypeStruct((), dtypes.to_numpy(torch.bool))
    with_one = operator.trace(lambda _: list(traced.function()), [unused], xla_devices.get(device).platform, x64=True)
    return torch.ops.lazy_runtime.computation([torch.zeros((), dtype=torch.bool, device=device)], with_one.digest)


def user_computation(name: str, tensors: Sequence[torch.Tensor], computation: Computation) -> list[torch.Tensor]:
    """The results of a computation of xla tensors, one for each element of its tuple.

    Args:
        name: accepted for PyTorch/XLA's sake.
    """
    return call(computation.traced(device_of(tensors).platform), tensors)


def xla_computation_as_func(
    computation: Computation, name: str | None = None
) -> Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]:
    """A function of a list of xla tensors: the computation's results, recorded as one operator.

    Args:
        name: accepted for PyTorch/XLA's sake.
    """
    return lambda input_tensors: user_computation(name or "xla::computation", input_tensors, computation)


def get_computation_hlo(computation: Computation) -> str:
    """HLO text of a computation, before XLA's optimizations."""
    return computation.hlo


def computation_from_module_proto(name: str, proto: bytes) -> Computation:
    """The computation of an HLO module.

    Args:
        name: for people.
        proto: a serialized `HloModuleProto`, as `jax.stages.Lowered.compiler_ir("hlo")` gives.
    """
    return from_stablehlo(name, hlo_to_stablehlo(proto))


def from_stablehlo(name: str, module: str | bytes) -> Computation:
    """The computation that the function `main` of a StableHLO module is.

    Args:
        name: for people.
        module: text, or MLIR bytecode.

    Raises:
        ValueError: it has no function `main`.
    """
    some: Any = jax.jit(lambda: 0).lower().compiler_ir("stablehlo")  # its context knows the dialects
    parsed = type(some).parse(module, context=some.context)
    with some.context:
        main = next((each for each in parsed.body.operations if str(each.name) == '"main"'), None)
        if main is None:
            raise ValueError(f"{name}: the module has no function `main`")
        inputs, outputs = [[_aval(each) for each in side] for side in (main.type.inputs, main.type.results)]
        serialized = serialize_portable_artifact(parsed, stablehlo.get_current_version())
    # what jax exports says how a module is called; this one says it of another module
    with dtypes.x64():
        example = jax.export.export(
            jax.jit(lambda *arrays: [jnp.zeros(each.shape, each.dtype) for each in outputs], keep_unused=True),
            disabled_checks=[jax.export.DisabledSafetyCheck.platform()],
        )(*inputs)
    exported = dataclasses.replace(example, fun_name=name, mlir_module_serialized=serialized)
    return Computation(name, inputs, lambda *arrays: tuple(exported.call(*arrays)))


def _aval(kind: Any) -> jax.ShapeDtypeStruct:
    """The shape and dtype of an MLIR tensor type."""
    element = str(kind.element_type)
    return to_aval({"type": _ELEMENTS.get(element, element), "sizes": tuple(kind.shape)})


#: MLIR's element types that XLA calls otherwise
_ELEMENTS = {f"i{bits}": f"s{bits}" for bits in (8, 16, 32, 64)} | {f"ui{bits}": f"u{bits}" for bits in (8, 16, 32, 64)}
_ELEMENTS |= {"i1": "pred", "complex<f32>": "c64", "complex<f64>": "c128"}
