"""`XLATensor`: the tensor inside torch's functional wrapper on an xla device.

To the user `type(x)` is `torch.Tensor`; it is torch's C++ `FunctionalTensorWrapper`, which turns views and in-place
operators into pure ones, around one of these. The wrapper swaps its inner tensor when it is written to, so an XLATensor
is immutable, unless nobody else holds it (`rebind`).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch

from .. import native
from ..common import forking
from ..compat.torch import (
    DispatchKey,
    from_functional_tensor,
    functionalize_sync,
    is_functional_tensor,
    make_wrapper_subclass,
    storage_address_of,
    sync_functional,
    to_functional_tensor,
)
from ..compat.torch import is_key_excluded as _is_excluded
from ..ir.graph import Handle, Value
from ..ir.spec import TensorSpec

_FUNCTIONALIZE = DispatchKey.Functionalize
_WITHIN_PYTHON = DispatchKey.PythonTLSSnapshot  # excluded while a `__torch_dispatch__` runs
to_functional = to_functional_tensor


class XLATensor(torch.Tensor):
    """A pure tensor: a handle on a value, and the spec that says how it looks."""

    __slots__ = ("handle", "spec")

    handle: Handle
    spec: TensorSpec

    # `dispatch` sets the real one; a wrapper subclass must have it when it is defined
    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError("lazy_runtime.recording.dispatch is not loaded")

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"XLATensor({self.spec})"


def make(handle: Handle, spec: TensorSpec) -> XLATensor:
    """The tensor with this value and look."""
    tensor = _inner_tensor(XLATensor, spec)
    tensor.handle = handle
    tensor.spec = spec
    return tensor


def rebind(tensor: XLATensor, handle: Handle) -> None:
    """The tensor has another value from now on; nobody else may hold it. Of one that nobody has seen yet, `handle` may
    be set as it is: `Unchanged` does not know it.
    """
    global _bindings
    tensor.handle = handle
    _bindings = object()


#: Another object after each `rebind`.
_bindings = object()


def from_array(array: Any, spec: TensorSpec) -> XLATensor:
    """The tensor whose data is the device buffer `array`."""
    return make(Handle(Value(None, 0, array)), spec)


class _Serving(threading.local):
    """How many calls of `XLATensor.__torch_dispatch__` this thread is in."""

    depth = 0


serving = _Serving()


def to_user(tensor: XLATensor) -> torch.Tensor:
    """What a kernel registered for the XLA key returns: functional, except inside of functionalization itself.

    Torch excludes functionalization in every `__torch_dispatch__`. In that of somebody else, a subclass's or a mode's,
    the tensor is a user's all the same, unless it has switched such calls off too, for a kernel of fake tensors.
    """
    if not _is_excluded(_FUNCTIONALIZE):
        return to_functional(tensor)
    of_others = serving.depth == 0 and _is_excluded(_WITHIN_PYTHON) and not _is_excluded(DispatchKey.Python)
    return to_functional(tensor) if of_others else tensor


def unwrap(tensor: torch.Tensor) -> XLATensor:
    """The XLATensor inside a user's tensor, with every write through its aliases applied.

    Raises:
        TypeError: it is not an xla tensor of this package.
        NotImplementedError: it is a sparse one.
    """
    if type(tensor) is XLATensor:
        return tensor
    if is_functional_tensor(tensor):
        sync_functional(tensor)  # without it, a write through an alias would be missed
        inner = from_functional_tensor(tensor)
        if type(inner) is XLATensor:
            return inner
    if tensor.layout is torch.sparse_coo and tensor.device.type == "xla":
        raise NotImplementedError("a sparse xla tensor where only dense ones are taken: convert it (`x.to_dense()`)")
    raise TypeError(f"expected a tensor on an xla device, got one on {tensor.device}")


def values_of(tensors: Sequence[torch.Tensor]) -> list[Value]:
    """The values of xla tensors as users hold them, with every write through their aliases applied: `unwrap` for
    hundreds.

    Raises:
        TypeError: one of them is on another device.
    """
    return [inner.handle.value for inner in _many.inner_tensors(tensors)]


class Unchanged:
    """Tells, in a hundredth of a microsecond for each, whether tensors as users hold them still have the values that
    they had when this was made. It keeps neither.

    Raises:
        TypeError: one of them is on another device.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]):
        self._bindings = _bindings
        #: the weak reference that each value has to its handle, for as long as it lives
        self._owners = [value.owner for value in values_of(tensors)]
        self._known = _many.know_tensors(tensors)

    def of(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether these, in place of those tensors, have their values."""
        bindings = _bindings
        if bindings is self._bindings and _many.are_same(self._known, tensors):
            return True
        if self._owners != [value.owner for value in values_of(tensors)]:
            return False
        if bindings is self._bindings:  # others hold the values now
            self._known = _many.know_tensors(tensors)
        self._bindings = bindings
        return True


class InPython:
    """What stands in for `native.tensors()` where it could not be built: nothing is known, and so never the same."""

    @staticmethod
    def inner_tensor(kind: type[torch.Tensor], spec: TensorSpec) -> Any:
        return make_wrapper_subclass(
            kind, spec.shape, spec.stride, spec.offset, dtype=spec.dtype, device=spec.torch_device
        )

    @staticmethod
    def inner_tensors(tensors: Sequence[torch.Tensor]) -> list[Any]:
        return [InPython._inside(tensor) for tensor in tensors]

    @staticmethod
    def _inside(tensor: torch.Tensor) -> Any:
        if type(tensor) is XLATensor:  # subclasses of others hold them
            return tensor
        if tensor.device.type != "xla":
            raise TypeError(f"expected a tensor on an xla device, got one on {tensor.device}")
        functionalize_sync(tensor)
        return from_functional_tensor(tensor)

    @staticmethod
    def know_tensors(tensors: Sequence[torch.Tensor]) -> None:
        return None

    @staticmethod
    def are_same(known: None, tensors: Sequence[torch.Tensor]) -> bool:
        return False

    @staticmethod
    def make_all_resizable(objects: Sequence[Any]) -> None:
        torch.ops.lazy_runtime.make_resizable([each for each in objects if isinstance(each, torch.Tensor)])

    @staticmethod
    def sharing(tensors: Sequence[torch.Tensor], count: int) -> tuple[int, ...]:
        memory = [storage_address_of(tensor.untyped_storage()) for tensor in tensors]
        first = {its: number for number, its in reversed(list(enumerate(memory[:count])))}
        return tuple(first.get(its, -1) for its in memory)


try:
    _many: Any = native.tensors()
except native.NativeError:  # built without Python's headers
    _many = InPython

_inner_tensor = _many.inner_tensor


def make_resizable(objects: Sequence[Any]) -> None:
    """Has torch resize memory that it did not allocate, of the CPU tensors among these, by copying it.

    Args:
        objects: a list or a tuple; nobody else may hold the tensors' memory.
    """
    _many.make_all_resizable(objects)


def sharing(tensors: Sequence[torch.Tensor], count: int) -> tuple[int, ...]:
    """For each tensor, the number of the first among the first `count` of them that has the same memory, or -1.

    Args:
        tensors: a list or a tuple, on any device, none of them sparse.
    """
    return _many.sharing(tensors, count)


forking.refuse_in_child(XLATensor, "__torch_dispatch__")
