"""Fake quantization: floats that take only the values which integers with a scale and a zero point stand for.

The roundings follow aten/src/ATen/native/quantized/cpu/kernels/QuantizedOpKernels.cpp step by step. Where an integer of
that kernel overflows, the value is the next one in range, as of CUDA's kernels.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import torch

from ...common.errors import type_name
from ...ir import dtypes
from ...lowering import checks
from ..registry import op

aten = torch.ops.aten


def _alike(x: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The looks of a fake quantized tensor and of its mask."""
    return torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)


def _filled(like: torch.Tensor, value: float, kept: int | None = None) -> torch.Tensor:
    """A CPU tensor of one value for a kernel to check.

    Args:
        kept: the only dimension whose size is the call's own, or None for all of them.
    """
    sizes = [size if kept in (None, dim) else min(size, 1) for dim, size in enumerate(like.shape)]
    return torch.full(sizes, value, dtype=like.dtype, device="cpu")


def _infer_per_tensor(x, scale, zero_point, low, high):
    aten.fake_quantize_per_tensor_affine_cachemask.default(_filled(x, 0, -1), scale, zero_point, low, high)
    return _alike(x)


def _infer_of_tensors(x, scale, zero_point, enabled, low, high):
    aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default(
        _filled(x, 0, -1), _filled(scale, 1), _filled(zero_point, low), _filled(enabled, 1), low, high
    )
    return _alike(x)


def _infer_per_channel(x, scale, zero_point, axis, low, high):
    aten.fake_quantize_per_channel_affine_cachemask.default(
        _filled(x, 0, axis), _filled(scale, 1), _filled(zero_point, low), axis, low, high
    )
    return _alike(x)


for _infer in (_infer_per_tensor, _infer_of_tensors, _infer_per_channel):
    _infer.result = _alike  # type: ignore[attr-defined]  where fake tensors are, kernels cannot be asked


# ---- rounding


def _round(x, scale, zero_point, low, high):
    """The values and the mask of a whole zero point; scale and zero point are broadcast against `x`."""
    scale = scale.astype(jnp.float32)
    near = zero_point + jnp.round(x * (1 / scale))
    whole = jnp.fmin(jnp.fmax(near, low), high).astype(jnp.int64)  # NaN becomes the lowest
    whole = jnp.clip(whole, low, high)  # beyond 2^24 the bounds were rounded
    values = (whole - zero_point).astype(jnp.float32) * scale
    return values.astype(x.dtype), (low <= near) & (near <= high)


def _round_with_float(x, scale, zero_point, low, high):
    """The same of a zero point between integers, which is added before the rounding."""
    scale = scale.astype(jnp.float32)
    near = jnp.round((zero_point + x * (1 / scale)).astype(jnp.float32))
    whole = jnp.fmin(jnp.fmax(near, low), high)
    return ((whole - zero_point.astype(jnp.float32)) * scale).astype(x.dtype), (low <= near) & (near <= high)


@op("aten::fake_quantize_per_tensor_affine_cachemask", infer=_infer_per_tensor)
def fake_quantize(x, scale, zero_point, low, high):
    return _round(x, jnp.float32(scale), jnp.int64(zero_point), low, high)


@op("aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", infer=_infer_of_tensors)
def fake_quantize_of_tensors(x, scale, zero_point, enabled, low, high):
    values, mask = _round(x, scale.reshape(()), zero_point.reshape(()).astype(jnp.int64), low, high)
    return _where_enabled(enabled, x, values, mask)


def _where_enabled(enabled, x, values, mask):
    enabled = enabled.reshape(()).astype(jnp.int32) != 0
    return jnp.where(enabled, values, x), mask | ~enabled


@op("aten::fake_quantize_per_channel_affine_cachemask", infer=_infer_per_channel, fallible=True)
def fake_quantize_per_channel(x, scale, zero_point, axis, low, high):
    if jnp.issubdtype(zero_point.dtype, jnp.floating):
        return _per_channel(_round_with_float, x, scale, zero_point, axis, low, high)
    checks.require(
        ((low <= zero_point) & (zero_point <= high)).all(),
        lambda _: RuntimeError("`zero_point` must be between `quant_min` and `quant_max`."),
    )
    return _per_channel(_round, x, scale, zero_point.astype(jnp.int64), axis, low, high)


def _per_channel(function, x, scale, zero_point, axis: int, low, high):
    shape = [-1 if dim == axis else 1 for dim in range(x.ndim)]
    return function(x, scale.reshape(shape), zero_point.reshape(shape), low, high)


# ---- scale and zero point from what was observed

#: Fbgemm's least scale, the least normal number of float16.
_LEAST_SCALE = 6.1e-5  # no array of jax's: to make one would start its clients where this is imported


def choose_parameters(low_seen, high_seen, low: int, high: int, symmetric: bool):
    """Scale and zero point for floats in a range: `ChooseQuantizationParams` of fbgemm/QuantUtils.h, which computes in
    float32 but for the points of the range in units of the scale.
    """
    steps = high - low
    if symmetric:
        least, most = -(steps // 2 + 1), steps // 2
        across = (low_seen < 0) & (high_seen > 0)
        # XLA multiplies by the inverse of a constant, which float32 would show
        ratios = (seen.astype(jnp.float64) / bound for seen, bound in ((low_seen, least), (high_seen, most)))
        widest = jnp.maximum(*(jnp.abs(ratio.astype(jnp.float32)) for ratio in ratios)).astype(jnp.float64)
        low_seen = jnp.where(across, (widest * least).astype(jnp.float32), low_seen)
        high_seen = jnp.where(across, (widest * most).astype(jnp.float32), high_seen)
    low_seen, high_seen = jnp.minimum(low_seen, 0), jnp.maximum(high_seen, 0)  # 0 itself has to be in range
    scale = ((high_seen.astype(jnp.float64) - low_seen) / steps).astype(jnp.float32)
    scale = jnp.where((scale == 0) | jnp.isinf(1 / scale), jnp.float32(0.1), scale)
    least_scale = jnp.float32(_LEAST_SCALE)
    small = scale < least_scale
    wider = least_scale / scale
    low_wider = jnp.where(high_seen == 0, -least_scale * steps, low_seen * wider)
    high_wider = jnp.where(low_seen == 0, least_scale * steps, high_seen * wider)
    low_seen, high_seen = jnp.where(small, low_wider, low_seen), jnp.where(small, high_wider, high_seen)
    scale = jnp.where(small, least_scale, scale)
    low_steps, high_steps = (seen.astype(jnp.float64) / scale for seen in (low_seen, high_seen))
    from_low = abs(low) - jnp.abs(low_steps) < abs(high) - jnp.abs(high_steps)  # which has the smaller error
    point = jnp.where(from_low, low - low_steps, high - high_steps)
    if symmetric:
        point = jnp.where((low_seen < 0) & (high_seen > 0), (low + high) / 2, point)
    return scale, jnp.round(jnp.clip(point, low, high))


def _infer_observing(x, observing, quantizing, low_seen, high_seen, scale, zero_point, *rest):
    axis, per_channel = rest[3], len(rest) > 4 and rest[4]
    state = [low_seen, high_seen, scale, zero_point]
    if per_channel and not low_seen.numel():  # what has observed nothing yet
        state = [one.new_empty(x.shape[axis]) for one in state]
    elif not per_channel and any(one.numel() != 1 for one in state):
        # of which the CPU kernel reads and writes the first, whether or not it is there
        raise RuntimeError("fused_moving_avg_obs_fake_quant takes one minimum, maximum, scale and zero point")
    functional: Any = aten._fused_moving_avg_obs_fq_helper_functional.default
    asked = [_filled(x, 0, axis), _filled(observing, 0), _filled(quantizing, 1)]
    functional(*asked, *(_filled(one, 0) for one in state), *rest)
    return (*_alike(x), *state)


@op("aten::_fused_moving_avg_obs_fq_helper_functional", infer=_infer_observing, fallible=True)
def observe_and_fake_quantize(
    x, observing, quantizing, low_seen, high_seen, scale, zero_point, constant, low, high, axis, per_channel=False,
    symmetric=False, *, out,
):  # fmt: skip
    """What a module that observes and fake quantizes leaves in its range, its scale and its zero point."""
    observing, quantizing = (each.reshape(()).astype(jnp.int32) != 0 for each in (observing, quantizing))
    low_seen, high_seen, scale, zero_point = (
        _resized(*each)
        for each in zip((low_seen, high_seen, scale, zero_point), (jnp.inf, -jnp.inf, 1, 0), out[2:], strict=True)
    )
    _require_observable(observing, axis if per_channel else 0, x, low_seen, high_seen)
    if axis == 0 or not per_channel:
        rows = x.reshape(x.shape[0], -1) if per_channel else x.reshape(1, -1)
        low_seen = jnp.where(observing, _averaged(low_seen, rows.min(1), constant), low_seen)
        high_seen = jnp.where(observing, _averaged(high_seen, rows.max(1), constant), high_seen)
    chosen = choose_parameters(low_seen.astype(jnp.float32), high_seen.astype(jnp.float32), low, high, symmetric)
    scale = jnp.where(quantizing, chosen[0].astype(scale.dtype).reshape(scale.shape), scale)
    zero_point = jnp.where(quantizing, chosen[1].astype(zero_point.dtype).reshape(zero_point.shape), zero_point)
    if per_channel:
        values, mask = _per_channel(_round, x, scale, zero_point.astype(jnp.int64), axis, low, high)
    else:
        values, mask = _round(x, scale.reshape(()), zero_point.reshape(()).astype(jnp.int64), low, high)
    return (*_where_enabled(quantizing, x, values, mask), low_seen, high_seen, scale, zero_point)


def _require_observable(observing, axis: int, *floats) -> None:
    """Raises what the CPU kernel refuses to observe, which depends on a tensor: a module may no longer do so."""
    if axis != 0:
        words = "Per-channel FakeQuant in fused_moving_avg_obs_fake_quant is only supported on axis == 0"
        checks.require(~observing, lambda _: RuntimeError(words))
    for each in floats:
        if each.dtype != jnp.float32:
            found = type_name(dtypes.to_torch(each.dtype))
            checks.require(
                ~observing, lambda _, found=found: RuntimeError(f"expected scalar type Float but found {found}")
            )


def _resized(state, first: float, spec):
    """A state as it was, or of a size that it did not have yet, the first value of each channel."""
    return state if state.shape == spec.shape else jnp.full(spec.shape, first, state.dtype)


def _averaged(seen, now, constant: float):
    now = now.reshape(seen.shape).astype(seen.dtype)
    return jnp.where(jnp.isinf(seen), now, seen + jnp.asarray(constant, seen.dtype) * (now - seen))
