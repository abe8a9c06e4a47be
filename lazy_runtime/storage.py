"""Storages on xla: what `torch.load(map_location="xla")` and pickling need of them.

An xla tensor has no memory that a storage could show. A checkpoint of CPU tensors holds storages, and torch rebuilds
each tensor as `torch.empty(0, device=storage.device).set_(storage, offset, size, stride)`. So a storage that is loaded
to xla stays in host memory and only says that it is on xla (`XLAStorage`); `set_` uploads it, once per storage, and
tensors that shared it in the checkpoint share it again.
"""

from __future__ import annotations

import copyreg
from typing import Any

import torch
from torch._tensor import _rebuild_from_type_v2
from torch._utils import _get_obj_state, _rebuild_sparse_tensor

from . import dispatch, memory, views
from .tensor import XLATensor, unwrap

aten = torch.ops.aten


class XLAStorage(torch.UntypedStorage):
    """Host memory on its way to an xla device."""

    target: torch.device
    uploads: dict[torch.dtype, torch.Tensor]  # flat xla tensors over all of the storage

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Where the tensors that are rebuilt from this storage live."""
        return self.target


def restore(storage: Any, location: str) -> XLAStorage | None:
    """For `register_package`: the storage of a checkpoint, loaded with a `map_location` that starts with `xla`.

    Raises:
        RuntimeError: there is no such device.
    """
    if location.split(":")[0] != "xla":
        return None
    from . import xla_devices

    target = xla_devices.get(location).torch_device
    if isinstance(storage, XLAStorage):
        storage = storage.cpu()
    storage.__class__ = XLAStorage  # the same memory: a memory-mapped checkpoint is not read before it is needed
    storage.target = target
    storage.uploads = {}
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
        autograd = torch._C.DispatchKey.Autograd
        if size is None:
            return aten.set_.source_Storage._op_dk(autograd, tensor, source)
        return aten.set_.source_Storage_storage_offset._op_dk(autograd, tensor, source, offset, size, stride)
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
    a tensor cannot become a view of another."""
    tensor, source, *place = args
    offset, size, stride = place or (0, (), ())
    with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.Functionalize, False):
        return unwrap(_upload(source, tensor.dtype).as_strided(size, stride, offset))


def _upload(source: torch.UntypedStorage, dtype: torch.dtype) -> torch.Tensor:
    if not isinstance(source, XLAStorage):
        raise NotImplementedError(
            f"an xla tensor has no storage that can be exchanged, got one on {source.device}: "
            "use `tensor.data = other`, or `.to('xla')` on a CPU tensor over that storage"
        )
    flat = source.uploads.get(dtype)
    if flat is None:
        count = source.nbytes() // dtype.itemsize
        host = torch.empty(0, dtype=dtype, device="cpu").set_(source, 0, (count,), (1,))  # type: ignore[call-overload]
        flat = source.uploads[dtype] = host.to(source.target)
    return flat


def reduce_tensor(tensor: torch.Tensor) -> Any:
    """How tensors are pickled. An xla tensor is one on the CPU with a storage that says `xla:N`, as CUDA's say
    `cuda:N`: it comes back to its device, and with `map_location="cpu"` any torch can load it, without this package.

    Torch's own way for xla calls `.to("xla:N")` when it is loaded, whatever the `map_location`.
    """
    if tensor.device.type != "xla":
        return tensor.__reduce_ex__(2)
    if tensor.is_sparse:
        parts = tensor._indices(), tensor._values(), tensor.size(), tensor.is_coalesced()
        return _rebuild_sparse_tensor, (tensor.layout, parts)
    host = tensor.detach().cpu().requires_grad_(tensor.requires_grad)
    host.untyped_storage().xla_device = tensor.device  # type: ignore[attr-defined]  for `_autoload._location_tag`
    rebuild, arguments = torch.Tensor._reduce_ex_internal(host, 2)
    state = _get_obj_state(tensor)
    if state:
        return _rebuild_from_type_v2, (rebuild, torch.Tensor, arguments, state)
    return rebuild, arguments


def _with_identity(torchs: Any) -> Any:
    """`UntypedStorage.data_ptr`, which torch refuses where there is no memory. What is asked of it is whether tensors
    share theirs, and that the storage itself can tell."""

    def data_ptr(self: torch.UntypedStorage) -> int:
        if self.device.type == "xla" and not isinstance(self, XLAStorage):
            return self._cdata
        return torchs(self)

    return data_ptr


def register(library: torch.library.Library) -> None:
    """Registers what works only once the devices are up."""
    torch.UntypedStorage.data_ptr = _with_identity(torch.UntypedStorage.data_ptr)  # type: ignore[method-assign]
    library.impl("set_.source_Storage", set_storage, "AutogradXLA")
    library.impl("set_.source_Storage_storage_offset", set_storage, "AutogradXLA")
    copyreg.pickle(torch.Tensor, reduce_tensor)  # type: ignore[arg-type]
