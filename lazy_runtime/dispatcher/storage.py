"""Storages on xla: what `torch.load(map_location="xla")` and pickling need of them.

An xla tensor has no memory that a storage could show. A checkpoint of CPU tensors holds storages, and torch rebuilds
each tensor as `torch.empty(0, device=storage.device).set_(storage, offset, size, stride)`. So a storage that is loaded
to xla stays in host memory and only says that it is on xla (`XLAStorage`); `set_` uploads it, once per storage, and
tensors that shared it in the checkpoint share it again.
"""

from __future__ import annotations

import copyreg
import functools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from ..compat.torch import (
    DispatchKey,
    SetExcludeDispatchKeyGuard,
    get_obj_state,
    is_unfilled,
    kernel_call_of,
    rebuild_from_type_v2,
    rebuild_sparse_tensor,
    reduce_ex_internal,
    sparse_indices,
    sparse_values,
    storage_address_of,
)
from ..recording import dispatch, views
from ..tensor.xla_tensor import XLATensor, unwrap
from . import addresses, memory

aten = torch.ops.aten


class XLAStorage(torch.UntypedStorage):
    """Host memory on its way to an xla device."""

    target: torch.device
    uploads: dict[torch.dtype, torch.Tensor]  # flat xla tensors over all of the storage
    is_filled: bool  # a file of the older format has its storages behind the tensors

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Where the tensors that are rebuilt from this storage live."""
        return self.target

    def _set_from_file(self, *args: Any) -> None:
        """Reads what the tensors that have been made of it show."""
        super()._set_from_file(*args)  # type: ignore[misc]
        self.is_filled = True
        with torch.no_grad():
            for dtype, flat in self.uploads.items():
                flat.copy_(_of_host(self, dtype))


def restore(storage: Any, location: str) -> XLAStorage | None:
    """For `register_package`: the storage of a checkpoint, loaded with a `map_location` that starts with `xla`.

    Raises:
        RuntimeError: there is no such device.
    """
    if location.split(":")[0] != "xla":
        return None
    from ..platform import xla_devices

    target = xla_devices.get(location).torch_device
    if isinstance(storage, XLAStorage):
        storage = storage.cpu()
    storage.__class__ = XLAStorage  # the same memory: a memory-mapped checkpoint is not read before it is needed
    storage.target = target
    storage.uploads = {}
    storage.is_filled = not is_unfilled(storage)
    return storage


def set_storage(
    tensor: torch.Tensor, source: torch.UntypedStorage, offset: int = 0, size: Any = None, stride: Any = ()
) -> torch.Tensor:
    """`aten::set_` for an xla tensor and a storage: a checkpoint's, or that of another xla tensor, which AOTAutograd
    takes for arguments that share memory.

    Args:
        size: None for all of the storage, flat.

    Raises:
        NotImplementedError: the storage is on another device.
    """
    if not views.has_memory(tensor):  # a stand-in of Dynamo's
        autograd = DispatchKey.Autograd
        if size is None:
            return kernel_call_of(aten.set_.source_Storage)(autograd, tensor, source)
        return kernel_call_of(aten.set_.source_Storage_storage_offset)(autograd, tensor, source, offset, size, stride)
    if size is not None:
        stride = memory.strides_of(size, stride)
    with torch.no_grad():
        if not isinstance(source, XLAStorage) and source.device.type == "xla":
            flat = torch.ops.lazy_runtime.of_storage(source, tensor.dtype)
            return tensor.set_(flat if size is None else views.of_root(flat, size, stride, offset))  # type: ignore[call-overload]
        flat = _upload(source, tensor.dtype)
        return tensor.set_(flat if size is None else flat.as_strided(size, stride, offset))  # type: ignore[call-overload]


@dispatch.handler("aten::set.source_Storage", "aten::set.source_Storage_storage_offset")
def _set(func: Any, args: tuple, kwargs: dict[str, Any]) -> XLATensor:
    """The same in inference mode, which skips autograd's key. These tensors share no memory: within functionalization
    a tensor cannot become a view of another.
    """
    tensor, source, *place = args
    offset, size, stride = place or (0, (), ())
    if isinstance(source, XLAStorage) and not source.is_filled:
        raise NotImplementedError(
            "a file of torch.save's older format cannot be loaded to xla in inference mode: load it before, or with "
            "map_location='cpu'"
        )
    with SetExcludeDispatchKeyGuard(DispatchKey.Functionalize, False):
        return unwrap(_upload(source, tensor.dtype).as_strided(size, stride, offset))


def _upload(source: torch.UntypedStorage, dtype: torch.dtype) -> torch.Tensor:
    if not isinstance(source, XLAStorage):
        raise NotImplementedError(
            f"an xla tensor has no storage that can be exchanged, got one on {source.device}: "
            "use `tensor.data = other`, or `.to('xla')` on a CPU tensor over that storage"
        )
    flat = source.uploads.get(dtype)
    if flat is None:
        flat = source.uploads[dtype] = _of_host(source, dtype).to(source.target)
    return flat


def _of_host(storage: XLAStorage, dtype: torch.dtype) -> torch.Tensor:
    count = storage.nbytes() // dtype.itemsize
    return torch.empty(0, dtype=dtype, device="cpu").set_(storage, 0, (count,), (1,))  # type: ignore[call-overload]


def reduce_tensor(tensor: torch.Tensor) -> Any:
    """How tensors are pickled. An xla tensor is one of a storage on `xla:N`, as CUDA's are of one on `cuda:N`: what
    shares memory is written once and shares it again, on its device, and with `map_location="cpu"` any torch can load
    it, without this package.

    Torch's own way for xla copies each tensor, and calls `.to("xla:N")` when it is loaded, whatever the `map_location`.
    """
    if tensor.device.type != "xla":
        return tensor.__reduce_ex__(2)
    if tensor.is_sparse:
        parts = sparse_indices(tensor), sparse_values(tensor), tensor.size(), tensor.is_coalesced()
        return rebuild_sparse_tensor, (tensor.layout, parts)
    if views.has_memory(tensor):
        rebuild, arguments = _reduce_by_storage(tensor)
    else:
        rebuild, arguments = reduce_ex_internal(tensor.detach().cpu(), 2)
    state = get_obj_state(tensor)
    if state:
        return rebuild_from_type_v2, (rebuild, torch.Tensor, arguments, state)
    return rebuild, arguments


def _reduce_by_storage(tensor: torch.Tensor) -> tuple[Any, tuple]:
    """What torch does for a tensor with a storage; for xla it would not get there."""
    alike = torch.empty(0, dtype=tensor.dtype, device="cpu").requires_grad_(tensor.requires_grad)
    rebuild, (storage, _, _, _, *rest) = reduce_ex_internal(alike, 2)
    kept: Any = tensor.untyped_storage()
    if isinstance(storage, torch.TypedStorage):
        kept = torch.TypedStorage(wrap_storage=kept, dtype=tensor.dtype, _internal=True)
    return rebuild, (kept, int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride(), *rest)


def _is_xlas(storage: torch.UntypedStorage) -> bool:
    return storage.device.type == "xla" and not isinstance(storage, XLAStorage)


def _to_host(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """A copy of what an xla storage holds."""
    with torch.no_grad():
        whole = torch.ops.lazy_runtime.whole_of_storage(storage)
        size = torch.ops.lazy_runtime.memory_size(whole)
        host = whole.cpu()
        if (host.stride(), host.storage_offset()) == (whole.stride(), 0) and host.untyped_storage().nbytes() == size:
            return host.untyped_storage()
        return torch.ops.lazy_runtime.of_storage(storage, whole.dtype).cpu().untyped_storage()


def to_cpu(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies of xla tensors on the CPU, without history; those that share memory share it there."""
    places = [storage_address_of(tensor.untyped_storage()) if views.has_memory(tensor) else None for tensor in tensors]
    counts, hosts = Counter(places), dict[int, torch.UntypedStorage]()
    moved = []
    for tensor, place in zip(tensors, places, strict=True):
        if place is None or counts[place] == 1:
            moved.append(tensor.detach().cpu())
            continue
        if place not in hosts:
            hosts[place] = _to_host(tensor.untyped_storage())
        host: Any = torch.empty(0, dtype=tensor.dtype, device="cpu")
        moved.append(host.set_(hosts[place], int(tensor.storage_offset()), tensor.shape, tensor.stride()))
    return moved


def _for_xla(name: str, ours: Any) -> None:
    """Gives xla's storages a method of their own, where torch's would look for memory."""
    torchs = getattr(torch.UntypedStorage, name)

    @functools.wraps(torchs)
    def method(self: torch.UntypedStorage, *args: Any) -> Any:
        return (ours if _is_xlas(self) else torchs)(self, *args)

    setattr(torch.UntypedStorage, name, method)


def _write_file(storage: torch.UntypedStorage, *args: Any) -> None:
    _to_host(storage)._write_file(*args)  # type: ignore[attr-defined]


def register(library: torch.library.Library) -> None:
    """Registers what works only once the devices are up."""
    _for_xla("data_ptr", addresses.of_storage)
    _for_xla("cpu", _to_host)
    _for_xla("_write_file", _write_file)
    addresses.register()
    library.impl("set_.source_Storage", set_storage, "AutogradXLA")
    library.impl("set_.source_Storage_storage_offset", set_storage, "AutogradXLA")
    copyreg.pickle(torch.Tensor, reduce_tensor)  # type: ignore[arg-type]
