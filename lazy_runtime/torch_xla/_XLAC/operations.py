"""Operators that the C++ module has and torch has not, or not in this form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.ffi
import torch

from ...ir import dtypes
from ...platform import xla_devices
from ..amp.syncfree import _functional
from ..core import xla_builder as xb
from ..core import xla_model as xm

__all__ = [
    "_xla_adam_optimizer_step_",
    "_xla_cast_int4",
    "_xla_dequantize_tensor",
    "_xla_dot_general",
    "_xla_dynamic_expand",
    "_xla_dynamic_view",
    "_xla_mark_dynamic",
    "_xla_optimization_barrier_",
    "_xla_quantize_tensor",
    "_xla_register_custom_call_target",
    "_xla_sgd_optimizer_step_",
    "_xla_tpu_custom_call",
]


def _dot_general(lhs: Any, rhs: Any, numbers: Any, precision: str | None, dtype: Any) -> Any:
    wanted = None if precision is None else jax.lax.Precision[precision.upper()]
    return jax.lax.dot_general(lhs, rhs, numbers, wanted, dtype)


def _xla_dot_general(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    dimension_numbers: Any,
    precision_config: str | None = None,
    preferred_element_type: torch.dtype | None = None,
) -> torch.Tensor:
    """XLA's `DotGeneral` (https://openxla.org/xla/operation_semantics#dotgeneral). No gradient goes through it.

    Args:
        dimension_numbers: ((contracted of `lhs`, of `rhs`), (batch of `lhs`, of `rhs`)); `()` for no batch.
        precision_config: "default", "high" or "highest"; by default what `jax_default_matmul_precision` says.
        preferred_element_type: of the sums and the result; by default that of the operands.
    """
    contracted, batch = dimension_numbers
    numbers = tuple(tuple(tuple(dims) for dims in pair or ((), ())) for pair in (contracted, batch))
    return xb.call_jax(_dot_general, (lhs, rhs, _Static(numbers), precision_config, preferred_element_type))


class _Static(tuple):
    """A tuple that is no nest of arguments."""


jax.tree_util.register_pytree_node(_Static, lambda numbers: ((), tuple(numbers)), lambda numbers, _: _Static(numbers))


def _xla_cast_int4(weight: torch.Tensor, int4_weight_values: Sequence[int]) -> torch.Tensor:
    """Numbers of 4 bits in place of a weight: torch has no such dtype, so they are int8, from -8 to 7.

    Args:
        weight: whose sizes and device the result has.
        int4_weight_values: its values, row-major.

    Raises:
        ValueError: there are not as many as the weight has elements, or one has more than 4 bits.
    """
    if len(int4_weight_values) != weight.numel():
        raise ValueError(f"int4_weight_values: expected {weight.numel()} numbers, got {len(int4_weight_values)}")
    wrong = [value for value in int4_weight_values if not -8 <= value <= 7]
    if wrong:
        raise ValueError(f"int4_weight_values: expected numbers from -8 to 7, got {wrong[0]}")
    return torch.tensor(list(int4_weight_values), dtype=torch.int8, device=weight.device).reshape(weight.shape)


def _quantization(
    x: torch.Tensor, scales: Sequence[float], zero_points: Sequence[int], axis: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The scales and zero points as tensors that broadcast to `x`."""
    sizes = [-1 if dim == axis % x.dim() else 1 for dim in range(x.dim())] if axis >= 0 else []
    scale = torch.tensor(list(scales), dtype=torch.float32, device=x.device)
    zero = torch.tensor(list(zero_points), dtype=torch.float32, device=x.device)
    return (scale.reshape(sizes), zero.reshape(sizes))


_INTEGERS = {"int8": torch.int8, "uint8": torch.uint8, "int16": torch.int16, "int32": torch.int32}


def _integers(name: str) -> torch.dtype:
    try:
        return _INTEGERS[name.removeprefix("torch.")]
    except KeyError:
        raise ValueError(f"dtype: expected one of {', '.join(_INTEGERS)}, got {name!r}") from None


def _xla_quantize_tensor(
    input: torch.Tensor,
    scale_list: Sequence[float],
    zero_point_list: Sequence[int],
    quant_min: int,
    quant_max: int,
    dtype: str,
    axis: int = -1,
) -> torch.Tensor:
    """Integers `round(input / scale) + zero_point`, rounded to even and clamped.

    Args:
        scale_list, zero_point_list: one for all, or one for each place along `axis`.
        dtype: of the result, by name: "int8".
        axis: -1 where there is one scale.
    """
    scale, zero = _quantization(input, scale_list, zero_point_list, axis)
    return (torch.round(input.float() / scale) + zero).clamp(quant_min, quant_max).to(_integers(dtype))


def _xla_dequantize_tensor(
    input: torch.Tensor,
    scale_list: Sequence[float],
    zero_point_list: Sequence[int],
    quant_min: int,
    quant_max: int,
    dtype: str,
    axis: int = -1,
) -> torch.Tensor:
    """Floats `(input - zero_point) * scale`; see `_xla_quantize_tensor`."""
    _integers(dtype)
    scale, zero = _quantization(input, scale_list, zero_point_list, axis)
    return (input.float() - zero) * scale


def _xla_optimization_barrier_(inputs: Sequence[torch.Tensor]) -> None:
    """See `xm.optimization_barrier_`."""
    xm.optimization_barrier_(inputs)


def _xla_sgd_optimizer_step_(
    found_inf: torch.Tensor,
    step: torch.Tensor,
    param: torch.Tensor,
    buf: torch.Tensor,
    d_p: torch.Tensor,
    weight_decay: float,
    momentum: float,
    lr: float,
    dampening: float,
    nesterov: bool,
    maximize: bool,
) -> None:
    """See `amp.syncfree._functional.sgd_step`, of one parameter."""
    _functional.sgd_step(
        found_inf,
        [step],
        [param],
        [d_p],
        [buf],
        weight_decay=weight_decay,
        momentum=momentum,
        lr=lr,
        dampening=dampening,
        nesterov=nesterov,
        maximize=maximize,
    )


def _xla_adam_optimizer_step_(
    found_inf: torch.Tensor,
    step: torch.Tensor,
    param: torch.Tensor,
    grad: torch.Tensor,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    max_exp_avg_sq: torch.Tensor,
    beta1: float,
    beta2: float,
    lr: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
    use_adamw: bool,
) -> None:
    """See `amp.syncfree._functional.adam_step`, of one parameter."""
    _functional.adam_step(
        found_inf,
        [step],
        [param],
        [grad],
        [exp_avg],
        [exp_avg_sq],
        [max_exp_avg_sq],
        amsgrad=amsgrad,
        beta1=beta1,
        beta2=beta2,
        lr=lr,
        weight_decay=weight_decay,
        eps=eps,
        maximize=maximize,
        use_adamw=use_adamw,
    )


def _xla_dynamic_expand(
    input: torch.Tensor, size: Sequence[int], src_tensor: torch.Tensor, src_dim: int, target_dim: int
) -> torch.Tensor:
    """`input` expanded to `size`, but as long along `target_dim` as `src_tensor` is along `src_dim`."""
    sizes = list(size)
    sizes[target_dim] = src_tensor.shape[src_dim]
    return input.expand(sizes)


def _xla_dynamic_view(
    input: torch.Tensor,
    size: Sequence[int],
    src_tensor: torch.Tensor,
    src_dim: int,
    target_dim: int,
    mul_scaler: int = 1,
) -> torch.Tensor:
    """`input` viewed as `size`, but as long along `target_dim` as `src_tensor` along `src_dim`, times `mul_scaler`."""
    sizes = list(size)
    sizes[target_dim] = src_tensor.shape[src_dim] * mul_scaler
    return input.view(sizes)


def _xla_mark_dynamic(input: torch.Tensor, dim: int) -> None:
    """Makes a size a bound.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError(
        "_xla_mark_dynamic: jax's StableHLO has no bounded sizes. Export with torch.export.Dim sizes, or call "
        "torch._dynamo.mark_dynamic(tensor, dim) for torch.compile"
    )


def _xla_tpu_custom_call(
    inputs: Sequence[torch.Tensor], payload: str, output_shapes: Sequence[Sequence[int]], output_dtypes: Sequence[Any]
) -> list[torch.Tensor]:
    """A Mosaic kernel of TPUs, as its serialized payload.

    Args:
        payload: the backend configuration of XLA's custom call `tpu_custom_call`.

    Raises:
        RuntimeError: the tensors are not on a TPU.
    """
    device = xla_devices.get(inputs[0].device) if inputs else xla_devices.get()
    if device.platform != "tpu":
        raise RuntimeError(
            f"_xla_tpu_custom_call: the kernel is compiled for TPUs, and xla is on {device.platform} here; give the "
            "Pallas kernel to xla_builder.call_jax, which compiles it for the device (interpret=True on a CPU)"
        )
    avals = [
        jax.ShapeDtypeStruct(tuple(shape), dtypes.to_numpy(dtype))
        for shape, dtype in zip(output_shapes, output_dtypes, strict=True)
    ]

    def kernel(*arrays: Any) -> Any:
        call = jax.ffi.ffi_call("tpu_custom_call", avals, custom_call_api_version=1, legacy_backend_config=payload)
        return call(*arrays)

    return list(xb.call_jax(kernel, tuple(inputs), override_hash=("tpu_custom_call", payload)))


def _xla_register_custom_call_target(fn_name: str, function_ptr: Any, platform: str) -> None:
    """Gives XLA a function of the typed FFI, which programs call by its name (`jax.ffi.ffi_call`).

    Args:
        function_ptr: a capsule over the handler.
        platform: `cpu`, `cuda`, `tpu`, or XLA's name of it (`Host`).
    """
    names = {"host": "cpu", "gpu": "cuda"}
    found = names.get(platform.lower(), platform.lower())
    jax.ffi.register_ffi_target(fn_name, function_ptr, platform=found)
