"""Data between torch's CPU tensors and device buffers."""

from __future__ import annotations

import time
from collections.abc import Sequence

import jax
import numpy as np
import torch

from ..common import errors, metrics, source_locations
from ..common.skipped_by_dynamo import skip
from ..debug import unplanned_syncs
from ..ir import dtypes, lifetimes
from ..ir.spec import TensorSpec
from ..platform.xla_devices import Device
from ..processes import multihost_arrays
from ..tensor.host_arrays import from_numpy, to_numpy
from ..tensor.xla_tensor import XLATensor, from_array
from . import execute


def to_device(
    tensor: torch.Tensor,
    device: Device,
    sharding: jax.sharding.Sharding | None = None,
    shape: Sequence[int] | None = None,
) -> XLATensor:
    """A copy of a CPU tensor on `device`, with its sizes and strides. Later writes to the source do not show.

    Args:
        sharding: how it lies on the devices that `device` stands for; by default all of it on each.
        shape: of the whole, where the tensor has only the rows of this process (`multihost_arrays.put_part`).

    Raises:
        TypeError: the device has no such dtype.
        NotImplementedError: the tensor is sparse or quantized.
    """
    if tensor.is_quantized:
        raise NotImplementedError(errors.quantized_move())
    if tensor.layout is not torch.strided:
        raise NotImplementedError(errors.not_dense(str(tensor.layout).removeprefix("torch.")))
    if tensor.is_meta:
        raise NotImplementedError("Cannot copy out of meta tensor; no data!")
    dtypes.check_supported(tensor.dtype, device.platform)
    look = torch.empty_like(tensor, device="meta")
    spec = TensorSpec.like(device, look if shape is None else look.new_empty(shape))
    copy = from_array(upload(tensor, device, sharding, shape), spec)
    copy.handle.value.line = source_locations.here()
    return copy


@skip
def upload(
    tensor: torch.Tensor,
    device: Device,
    sharding: jax.sharding.Sharding | None = None,
    shape: Sequence[int] | None = None,
) -> jax.Array:
    """A device buffer with a copy of a CPU tensor's elements.

    Args:
        sharding, shape: see `to_device`.
    """
    if tensor.dim() > 64:  # numpy's limit, and that of most of torch's kernels, in torch's words
        raise RuntimeError("only tensors with up to 64 dims are supported")
    # jax uses aligned host memory in place on the CPU, so it gets a copy of its own, made here before anybody writes
    with torch.no_grad():
        snapshot = tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    metrics.count("TransferToDevice")
    lifetimes.bound(1)
    with dtypes.x64(), metrics.timed("TransferToDeviceTime"):
        host = to_numpy(snapshot)
        if device.narrows and tensor.dtype in dtypes.narrowed():
            host = host.astype(dtypes.narrowed()[tensor.dtype])
        metrics.record("OutboundData", host.nbytes, metrics.Unit.BYTES)
        if shape is not None:
            return multihost_arrays.put_part(host, sharding or device.sharding, shape)
        return multihost_arrays.put(host, sharding or device.sharding)


def to_host(tensor: XLATensor) -> torch.Tensor:
    """A CPU tensor with the data and the strides of an xla tensor; waits for its value.

    Raises:
        what went wrong in an execution before or up to it (`checks.py`).
    """
    spec = tensor.spec
    began = time.perf_counter_ns()
    recorded = spec.device.pending if tensor.handle.value.array is None else ()
    pending = sum([node.call.operators for node in recorded])
    try:
        host = download(execute.array_of(tensor.handle.value, spec.device))
    except jax.errors.JaxRuntimeError:
        spec.device.wait()  # the execution that failed raises what it means
        raise
    if host.dtype != spec.dtype:  # the device has fewer bits (`dtypes.narrowed`)
        host = host.to(spec.dtype)
    spec.device.raise_failures_of_read()
    unplanned_syncs.waited(time.perf_counter_ns() - began, pending)
    return host if spec.is_contiguous else _like(spec.meta(), host)


def restride(tensor: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """The elements of a contiguous `tensor` with exactly the spec's strides, expanded dimensions included."""
    if spec.is_contiguous:
        return tensor
    with torch.no_grad():
        for dim, (size, step) in enumerate(zip(spec.shape, spec.stride, strict=True)):
            if step == 0 and size > 1:
                tensor = tensor.narrow(dim, 0, 1)
        made = torch.empty_strided(tensor.shape, spec.stride, dtype=tensor.dtype, device=tensor.device)
        return made.copy_(tensor).expand(spec.shape)


def _like(look: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """A copy of `source` with the memory order of `look`, as torch's copies between devices make it."""
    with torch.no_grad():
        return torch.empty_like(look, device=source.device).copy_(source)


def download(array: jax.Array) -> torch.Tensor:
    """A fresh, contiguous CPU tensor with the data of a device buffer. Where other processes have parts of it, they
    have to come here too.
    """
    with metrics.timed("TransferFromDeviceTime"):
        return from_numpy(to_array(array))


def to_array(array: jax.Array) -> np.ndarray:
    """The data of a device buffer, whose memory it may be; see `download`."""
    metrics.count("TransferFromDevice")
    metrics.record("InboundData", array.nbytes, metrics.Unit.BYTES)
    return np.asarray(multihost_arrays.whole(array))
