"""Kernels registered with torch's dispatcher for the XLA key: how tensors come to the device, leave it and are read.

Torch's Functionalize key wraps what they return, or they do it themselves when called outside of it.
"""

from __future__ import annotations

from typing import Any

import torch

from .. import native
from ..common import errors
from ..compat.torch import (
    DispatchKey,
    functionalize_commit_update,
    functionalize_replace,
    functionalize_sync,
    to_functional_tensor,
)
from ..execution import execute, transfer
from ..ir import dtypes
from ..ir.spec import TensorSpec, storage_size
from ..ops import probe, registry
from ..platform import xla_devices as devices
from ..processes import multihost_arrays
from ..recording import (
    adam,
    attention,
    autocast,
    composites,
    decompose,
    dispatch,
    flex_attention,
    fused_optimizers,
    jit_tracing,
    recurrent,
    views,
)
from ..recording import data_dependent as data_dependent  # for their handlers
from ..recording import fallback as fallback
from ..recording import filling as filling
from ..recording import grad_scaler as grad_scaler
from ..recording import least_squares as least_squares
from ..recording import random_arguments as random_arguments
from ..recording import traced_factories as traced_factories
from ..recording import unique as unique
from ..tensor import proxy_tracing
from ..tensor.xla_tensor import XLATensor, from_array, make, to_user, unwrap
from . import factories, memory, queues, sparse, storage, subclasses, uninitialized
from . import functional_collectives as functional_collectives  # for its operators
from . import quantized as quantized

aten = torch.ops.aten

#: What `x &= y` and its like call: composite operators that write, which functionalization takes for a stranger's.
IN_PLACE_OPERATORS = ("__iand__", "__ior__", "__ixor__")

_library: torch.library.Library | None = None


def register() -> None:
    """Registers every kernel but the ones that `_autoload` needs from the start."""
    global _library
    _library = torch.library.Library("aten", "IMPL")
    for name in factories.FACTORIES:
        _factories[name] = _factory_kernel(f"aten::{name}")
    _library.impl("_copy_from", copy_from, "XLA")
    writes = native.writes()
    storage.register(_library)
    queues.register()
    views.register(_library)
    memory.register(_library)
    composites.register(_library)
    jit_tracing.register(_library)
    attention.register(_library)
    recurrent.register(_library)
    fused_optimizers.register(_library)
    adam.register()
    flex_attention.register()
    proxy_tracing.install()
    autocast.register()
    _library.impl("batch_norm", batch_norm, "AutogradXLA")
    _library.impl("native_batch_norm", native_batch_norm, "AutogradXLA")
    # Inference mode skips autograd's keys. Functionalization would then hand on these operators whole.
    _library.impl("native_batch_norm", native_batch_norm, "Functionalize")
    whole = [aten.batch_norm.default, aten._batch_norm_impl_index.default, aten.instance_norm.default]
    whole += [getattr(getattr(aten, name), kind) for name in IN_PLACE_OPERATORS for kind in ("Tensor", "Scalar")]
    for overload in whole:
        _library.impl(overload, overload.decompose, "Functionalize")
    _library.impl("_local_scalar_dense", lambda tensor: transfer.to_host(unwrap(tensor)).item(), "XLA")
    sparse.register(_library)
    subclasses.register()
    _register_meta(_library)
    writes.xla_register_writes()  # last: for the operators that have no kernel of their own


def _register_meta(library: torch.library.Library) -> None:
    """Gives Dynamo the shapes that are inferred for operators without a meta kernel. For CPU tensors it runs the CPU
    kernel instead.
    """
    keys = DispatchKey
    composites = keys.CompositeImplicitAutograd, keys.CompositeExplicitAutograd
    covered = keys.Meta, *composites, keys.CompositeExplicitAutogradNonFunctional
    for overload, operator in registry.table.items():
        if operator.infer is not overload and not any(map(overload.has_kernel_for_dispatch_key, covered)):
            library.impl(overload, probe.unprobed(operator.infer), "Meta")
    convolution = torch.ops.aten._convolution.default
    if not convolution.has_kernel_for_dispatch_key(keys.Meta):  # before torch 2.13
        library.impl(convolution, _meta_convolution, "Meta")


def _meta_convolution(*args: Any) -> torch.Tensor:
    return torch.ops.aten.convolution.default(*args[:9])  # the further ones choose among CUDA's kernels


def empty(
    size: Any,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """`aten::empty.memory_format`. The elements are zeros, see `uninitialized`."""
    _strided(layout)
    _not_quantized("aten::empty", dtype)
    target = devices.get(device)
    if memory_format is None or memory_format is torch.contiguous_format:
        return _filled(TensorSpec.of(target, dtype or torch.get_default_dtype(), tuple(size)))
    meta = torch.empty(size, dtype=dtype, device="meta", memory_format=memory_format)
    return _filled(TensorSpec.like(target, meta))


def empty_strided(
    size: Any,
    stride: Any,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    """`aten::empty_strided`; the strides are what the user sees, the buffer is dense."""
    _strided(layout)
    _not_quantized("aten::empty_strided", dtype)
    spec = TensorSpec.of(devices.get(device), dtype or torch.get_default_dtype(), tuple(size), tuple(stride))
    if any(step < 0 for step in spec.stride):
        torch.empty_strided(spec.shape, spec.stride, device="cpu")  # raises
    held = storage_size(spec.shape, spec.stride)
    if held <= spec.numel:
        return _filled(spec)
    # What no element shows is memory too: `as_strided` reaches it.
    flat = _filled(TensorSpec.of(spec.device, spec.dtype, (held,)))
    return _filled(spec) if type(flat) is XLATensor else views.of_root(flat, spec.shape, spec.stride, 0)


def refuse_quantized(name: str, *args: Any, **options: Any) -> torch.Tensor:
    """Refuses an operator that makes a quantized tensor.

    Raises:
        NotImplementedError: always: the operator makes a quantized tensor.
    """
    raise NotImplementedError(errors.no_quantized(name))


def _strided(layout: torch.layout | None) -> None:
    if layout not in (None, torch.strided):
        raise NotImplementedError(f"xla tensors are dense, {layout} is not supported: use layout=torch.strided")


def _not_quantized(name: str, dtype: torch.dtype | None) -> None:
    if dtype in dtypes.QUANTIZED:
        refuse_quantized(name)


def _filled(spec: TensorSpec) -> torch.Tensor:
    dtypes.check_supported(spec.dtype, spec.device.platform)
    options = {"dtype": spec.dtype, "device": spec.torch_device}
    element = uninitialized.value(spec.dtype)
    made = dispatch.record(registry.table[aten.full.default], (list(spec.shape), element), options)
    return jit_tracing.traceable(to_user(make(made.handle, spec)))


_factories: dict[str, Any] = {}


def factory(name: str, *args: Any, **kwargs: Any) -> torch.Tensor:
    """The factory with this name (`factories.FACTORIES`), called with its operator's arguments."""
    return _factories[name](*args, **kwargs)


def _factory_kernel(name: str) -> Any:
    target = registry.overload(name)
    if target is None or registry.lookup(target) is None:
        raise ValueError(f"{name} is listed as a factory and has no lowering")

    def kernel(*args: Any, **kwargs: Any) -> torch.Tensor:
        kwargs["device"] = devices.get(kwargs.get("device")).torch_device
        kwargs.pop("pin_memory", None)
        _strided(kwargs.pop("layout", None))
        return jit_tracing.traceable(to_user(dispatch.dispatch(XLATensor, target, (), args, kwargs)))

    return kernel


def to_copy(
    tensor: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """`aten::_to_copy` of a tensor that is not on xla yet. Torch's own would make a contiguous one: it takes xla to
    have no strides (`c10::Device::supports_as_strided`).
    """
    _strided(layout)
    if tensor.device.type == "xla":
        options = {"dtype": dtype, "device": device, "non_blocking": non_blocking, "memory_format": memory_format}
        return subclasses.functionalize(aten._to_copy.default, tensor, **options)
    dtype = dtype or tensor.dtype
    if not tensor.is_quantized:
        _not_quantized("aten::to", dtype)
    copy = transfer.to_device(tensor.to("cpu", dtype), devices.get(device))
    look = aten._to_copy.default(tensor, dtype=dtype, device=torch.device("meta"), memory_format=memory_format)
    return to_user(make(copy.handle, TensorSpec.like(copy.spec.device, look)))


def copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """`aten::_copy_from`: writes `source` into `target`, one of which is an xla tensor that is not functionalized."""
    if target.device.type == "xla":
        wrapped = unwrap(target)
        inner = make(transfer.to_device(source.to(target.dtype), wrapped.spec.device).handle, wrapped.spec)
        if target is wrapped:  # `torch.tensor(..., device="xla")` fills a fresh tensor below functionalization
            wrapped.handle = inner.handle
        else:
            functionalize_replace(target, inner)
            functionalize_commit_update(target)
            functionalize_sync(target)
        return target
    return target.copy_(transfer.to_host(unwrap(source)))


def batch_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> torch.Tensor:
    """`aten::batch_norm` in one step: torch's own goes through a choice of backends that costs 15 µs per layer."""
    features = x.shape[1:2]
    vectors = (weight, bias, running_mean, running_var)
    lacking = not training and (running_mean is None or running_var is None)  # which ends the process in a CPU kernel
    if lacking or not x.numel() or any(vector is not None and vector.shape != features for vector in vectors):
        # torch's own implementation says what is wrong, and leaves an empty batch out of the running statistics
        return aten._batch_norm_impl_index(
            x, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled
        )[0]
    return native_batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps)[0]


def native_batch_norm(
    x: torch.Tensor,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """`aten::native_batch_norm` writes to the running statistics without saying so in its schema, so functionalization
    would lose the write; its successors say so. (Dynamo does the same: torch/_decomp/decompositions.py).
    """
    if running_mean is None or running_var is None:
        return aten._native_batch_norm_legit.no_stats(x, weight, bias, training, momentum, eps)
    if not training:
        return aten._native_batch_norm_legit_no_training(x, weight, bias, running_mean, running_var, momentum, eps)
    return aten._native_batch_norm_legit(x, weight, bias, running_mean, running_var, training, momentum, eps)


@dispatch.handler("aten::lift", "aten::lift_fresh")
def _lift(func: Any, args: tuple, kwargs: dict[str, Any]) -> torch.Tensor:
    """The last step of `torch.tensor(..., device="xla")`, which works below functionalization until here. What was
    functionalized already never arrives.
    """
    (tensor,) = args
    return to_functional_tensor(make(tensor.handle, tensor.spec))


@dispatch.handler(
    "aten::_sparse_coo_tensor_with_dims_and_tensors", "aten::_sparse_coo_tensor_unsafe", "aten::_to_sparse",
    "aten::_to_sparse.sparse_dim", "aten::sparse_coo_tensor.size",
)  # fmt: skip
def _sparse_coo(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    raise NotImplementedError(errors.no_sparse_here(func))


@dispatch.handler(
    "aten::_sparse_compressed_tensor_unsafe", "aten::_sparse_csr_tensor_unsafe", "aten::_to_sparse_csr"
)  # fmt: skip
def _sparse_compressed(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    raise NotImplementedError(errors.not_dense("sparse"))


@dispatch.handler("aten::is_pinned")
def _is_pinned(func: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
    return False


@dispatch.handler("aten::detach", "aten::detach_copy", "aten::alias", "aten::alias_copy", "aten::lift_fresh_copy")
def _alias(func: Any, args: tuple, kwargs: dict[str, Any]) -> XLATensor:
    """The same value under another name: tensors are immutable here, so nothing is copied."""
    (tensor,) = args
    return make(tensor.handle, tensor.spec)


@dispatch.handler("aten::_local_scalar_dense")
def _local_scalar_dense(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    return transfer.to_host(args[0]).item()


@dispatch.handler("aten::equal")
def _equal(func: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
    x, y = args
    decompose.check_devices(func, args, kwargs)
    if x.shape != y.shape:
        return False
    return bool(transfer.to_host(aten.eq.Tensor(x, y).all()).item())


@dispatch.handler("aten::_to_copy")
def _to_copy(func: Any, args: tuple, kwargs: dict[str, Any]) -> torch.Tensor:
    """A copy with another dtype, memory format or device."""
    (tensor,) = args
    target = kwargs.get("device") or tensor.device
    options = {name: kwargs[name] for name in ("dtype", "memory_format") if kwargs.get(name) is not None}
    if dispatch.current_trace() is not None:  # one program, one device: where its outputs go is decided at the end
        return dispatch.record(registry.table[func], (tensor,), options)
    if not isinstance(tensor, XLATensor):
        return transfer.to_device(tensor.to(**options), devices.get(target))
    if target.type == "xla":
        tensor = move(tensor, devices.get(target))
        return dispatch.record(registry.table[func], (tensor,), options)
    return transfer.to_host(tensor).to(target, **options)


@dispatch.handler("aten::copy")
def _copy(func: Any, args: tuple, kwargs: dict[str, Any]) -> XLATensor:
    """What `target.copy_(source)` leaves in `target`: the source's data with the target's dtype, sizes and device."""
    target, source = args[:2]
    device = target.spec.device
    if not isinstance(source, torch.Tensor):  # `x.copy_(2)`
        source = torch.scalar_tensor(source, dtype=target.dtype, device="cpu")
    if not isinstance(source, XLATensor):
        source = transfer.to_device(source.to(target.dtype), device)
    source = move(source, device)
    if source.spec.shape == target.spec.shape and source.spec.dtype == target.spec.dtype:
        return make(source.handle, target.spec)
    return dispatch.record(registry.table[aten.copy.default], (target, source), {})


@dispatch.handler("aten::copy_")
def _copy_in_place(func: Any, args: tuple, kwargs: dict[str, Any]) -> torch.Tensor:
    """`cpu_tensor.copy_(xla_tensor)`, and in-place steps of torch's own decompositions, on tensors that nobody else has
    seen. A user's xla target is functionalized to `aten::copy`.
    """
    target, source = args[:2]
    if isinstance(target, XLATensor):
        target.handle = _copy(func, (target, source), kwargs).handle
        return target
    return target.copy_(transfer.to_host(source))


def move(tensor: XLATensor, device: devices.Device) -> XLATensor:
    """The same data on another xla device."""
    spec = tensor.spec
    if spec.device is device:
        return tensor
    array = multihost_arrays.moved(execute.array_of(tensor.handle.value, spec.device), device.sharding)
    return from_array(array, TensorSpec.of(device, spec.dtype, spec.shape, spec.stride, spec.offset))
