"""Sparse COO tensors on xla, such as the gradients of `nn.Embedding(sparse=True)`.

Such a tensor is torch's own, around two dense xla tensors: its indices and its values (`native/sparse.cpp`). What
torch's kernels compute in memory is said here in dense operators, so that it stays in the pending graph. `coalesce`
waits: how many distinct indices there are is the size of its result, and each size is another program behind it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from .. import native
from ..common import errors
from ..compat.torch import (
    DispatchKey,
    OpOverload,
    SetExcludeDispatchKeyGuard,
    kernel_call_of,
    nnz,
    schema_of,
    set_coalesced,
    sparse_indices,
    sparse_values,
)
from ..ops import registry
from ..recording import dispatch, views
from ..tensor.xla_tensor import XLATensor, to_functional, unwrap

aten = torch.ops.aten

_libraries: list[torch.library.Library] = []


# ---- kernels: called above autograd, with gradients off


def coalesce(tensor: torch.Tensor) -> torch.Tensor:
    """`aten::_coalesce`: each distinct index once, in order, with the sum of its values."""
    if nnz(tensor) < 2:
        return set_coalesced(tensor.clone(), True)
    values, sizes = sparse_values(tensor), tensor.shape[: tensor.sparse_dim()]
    numbers, group = torch.unique(_numbers(sparse_indices(tensor), sizes), return_inverse=True)
    kind = torch.int64 if values.dtype is torch.bool else values.dtype
    sums = values.new_zeros((numbers.shape[0], *values.shape[1:]), dtype=kind).index_add_(0, group, values.to(kind))
    return _make(_indices(numbers, sizes), sums.to(values.dtype), tensor, is_coalesced=True)


def _numbers(indices: torch.Tensor, sizes: torch.Size) -> torch.Tensor:
    """For each column of `indices` the element that it stands for, counted in row-major order."""
    numbers = indices.new_zeros(indices.shape[1])
    for row, size in zip(indices.unbind(), sizes, strict=True):
        numbers = numbers * size + row
    return numbers


def _indices(numbers: torch.Tensor, sizes: torch.Size) -> torch.Tensor:
    """The inverse of `_numbers`."""
    rows: list[torch.Tensor] = []
    for size in reversed(sizes):
        rows.insert(0, numbers % size)
        numbers = numbers // size
    return torch.stack(rows) if rows else numbers.new_zeros((0, numbers.shape[0]))


def _make(indices: torch.Tensor, values: torch.Tensor, like: torch.Tensor, is_coalesced: bool) -> torch.Tensor:
    """A sparse tensor with the sizes of `like`."""
    made = torch.sparse_coo_tensor(indices, values, like.shape, check_invariants=False)
    return set_coalesced(made, is_coalesced)


def add(x: torch.Tensor, y: torch.Tensor, *, alpha: Any = 1) -> torch.Tensor:
    """`aten::add.Tensor` of two sparse tensors: the indices of both, one after the other.

    Raises:
        RuntimeError: torch's own, for a sparse and a dense tensor, other sizes, or a factor of another kind.
    """
    if _is_number(y) or not (x.is_sparse and y.is_sparse):
        raise RuntimeError(_SPARSE_FIRST)
    _check_factor(torch.promote_types(x.dtype, y.dtype), alpha)
    return _sum(x, y, alpha)


_SPARSE_FIRST = "add(sparse, dense) is not supported. Use add(dense, sparse) instead."


def _check_factor(dtype: torch.dtype, alpha: Any) -> None:
    if isinstance(alpha, float) and not (dtype.is_floating_point or dtype.is_complex):
        raise RuntimeError("For integral input tensors, argument alpha must not be a floating point number.")


def _sum(x: torch.Tensor, y: torch.Tensor, alpha: Any) -> torch.Tensor:
    if x.shape != y.shape:
        raise RuntimeError(
            f"add: expected sizes of 'self' and 'other' to match, but {list(x.shape)} != {list(y.shape)}"
        )
    if x.sparse_dim() != y.sparse_dim():
        raise RuntimeError(
            f"add: expected 'self' and 'other' to have same density, but 'self' has {x.sparse_dim()} sparse dimensions "
            f"while 'other' has {y.sparse_dim()} sparse dimensions"
        )
    dtype = torch.promote_types(x.dtype, y.dtype)
    if nnz(y) == 0:
        return x.to(dtype, copy=True)
    indices = torch.cat([sparse_indices(x), sparse_indices(y)], 1)
    values = torch.cat([sparse_values(x).to(dtype), _scaled(sparse_values(y).to(dtype), alpha)])
    result = _make(indices, values, x, is_coalesced=False)
    # A sum that grows at each step, as SGD's momentum does, would need another program each time.
    is_full = indices.shape[1] > math.prod(x.shape[: x.sparse_dim()])
    return result.coalesce() if is_full or (x.is_coalesced() and y.is_coalesced()) else result


def _scaled(values: torch.Tensor, alpha: Any) -> torch.Tensor:
    if alpha == 1:
        return values
    return values * (alpha if values.is_floating_point() or values.is_complex() else int(alpha))


def add_(target: torch.Tensor, other: torch.Tensor, *, alpha: Any = 1) -> torch.Tensor:
    """`aten::add_.Tensor` of a sparse tensor to a dense or a sparse one.

    Raises:
        RuntimeError: torch's own, for other sizes or devices, or a dtype that does not fit into the target's.
    """
    if _is_number(other) or not other.is_sparse:
        raise RuntimeError(_SPARSE_FIRST)
    dtype = torch.promote_types(target.dtype, other.dtype)
    if not torch.can_cast(dtype, target.dtype):
        names = [errors.type_name(each) for each in (dtype, target.dtype)]
        raise RuntimeError(f"Can't convert result type {names[0]} to output {names[1]} in add operation")
    if target.is_sparse:
        return target.copy_(_sum(target, other, alpha))
    if target.device != other.device:
        raise RuntimeError(errors.device_mismatch(target.device, other.device))
    if target.shape != other.shape:
        raise RuntimeError(
            f"add: expected 'self' and 'other' to have same size, but self has size {list(target.shape)} while other "
            f"has size {list(other.shape)} (FYI: dense-sparse addition does not currently support broadcasting)"
        )
    values = _scaled(sparse_values(other).to(target.dtype), alpha)
    if other.sparse_dim() == 0:
        return aten.add_.Tensor(target, values.sum(0, dtype=target.dtype))
    return target.index_put_(sparse_indices(other).unbind(), values, accumulate=True)


def sub(x: torch.Tensor, y: torch.Tensor, *, alpha: Any = 1) -> torch.Tensor:
    """`aten::sub.Tensor` of two sparse tensors."""
    _check_difference(x, y)
    return add(x, y, alpha=-alpha)


def sub_(target: torch.Tensor, other: torch.Tensor, *, alpha: Any = 1) -> torch.Tensor:
    """`aten::sub_.Tensor` of a sparse tensor from a dense or a sparse one."""
    _check_difference(target, other)
    return add_(target, other, alpha=-alpha)


def _check_difference(x: torch.Tensor, y: Any) -> None:
    if not _is_number(y) and x.dtype is y.dtype is torch.bool:
        raise RuntimeError(
            "Subtraction, the `-` operator, with two bool tensors is not supported. Use the `^` or `logical_xor()` "
            "operator instead."
        )


def _is_number(x: Any) -> bool:
    return not isinstance(x, torch.Tensor) or (x.dim() == 0 and not x.is_sparse)


def _by_number(function: OpOverload, x: Any, y: Any) -> torch.Tensor:
    """`aten::mul.Tensor` and its like, of a sparse tensor and a number.

    Raises:
        NotImplementedError: both are tensors with dimensions.
    """
    if _is_number(x) and function is aten.mul.Tensor:
        x, y = y, x
    if _is_number(x) or not x.is_sparse or not _is_number(y):
        raise NotImplementedError(errors.with_sparse(function))
    return _make(sparse_indices(x), function(sparse_values(x), y), x, x.is_coalesced())


def _by_number_(function: OpOverload, target: torch.Tensor, y: Any) -> torch.Tensor:
    """`aten::mul_.Tensor` and its like, of a sparse tensor and a number.

    Raises:
        NotImplementedError: both are tensors with dimensions.
    """
    if not target.is_sparse or not _is_number(y):
        raise NotImplementedError(errors.with_sparse(function))
    function(sparse_values(target), y)
    return target


def power(tensor: torch.Tensor, exponent: Any) -> torch.Tensor:
    """`aten::pow.Tensor_Scalar`.

    Raises:
        RuntimeError: torch's own, for 0.
    """
    if exponent == 0:
        raise RuntimeError("pow: cannot raise to zeroth power on sparse tensor; it would make the result tensor dense")
    tensor = tensor.coalesce()
    return _make(sparse_indices(tensor), sparse_values(tensor).pow(exponent), tensor, is_coalesced=True)


def sparse_mask(tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """`aten::sparse_mask`: the elements of `tensor` that have an index in `mask`.

    Raises:
        RuntimeError: torch's own, for other sizes.
    """
    if tensor.shape != mask.shape:
        raise RuntimeError(
            f"sparse_mask(): operands have incompatible sizes; self has size {list(tensor.shape)} but mask has size "
            f"{list(mask.shape)}"
        )
    dense, places = tensor.to_dense() if tensor.is_sparse else tensor, sparse_indices(mask).unbind()
    values = dense[places] if places else dense.expand(nnz(mask), *dense.shape).clone()
    return _make(sparse_indices(mask).clone(), values, mask, mask.is_coalesced())


def mask_projection(tensor: torch.Tensor, mask: torch.Tensor, accumulate_matches: bool = False) -> torch.Tensor:
    """`aten::_sparse_mask_projection`, the gradient of `sparse_mask`: `tensor` where an index is in `mask` too, zeros
    where it is not, and if wanted as often as it is there.
    """
    sizes = mask.shape[: mask.sparse_dim()]
    places = _numbers(sparse_indices(mask), sizes)
    counts = places.new_zeros(math.prod(sizes)).index_add_(0, places, torch.ones_like(places))
    found = counts[_numbers(sparse_indices(tensor), sizes)]
    values = sparse_values(tensor)
    found = (found if accumulate_matches else found.clamp(max=1)).view(-1, *(1,) * (values.dim() - 1))
    return _make(sparse_indices(tensor), values * found.to(values.dtype), tensor, tensor.is_coalesced())


#: For the dispatch key SparseXLA; where one operand is dense and written to, it is functional.
KERNELS: dict[str, Callable[..., torch.Tensor]] = {
    "_coalesce": coalesce,
    "_sparse_mask_projection": mask_projection,
    "add.Tensor": add,
    "add_.Tensor": add_,
    "div.Tensor": functools.partial(_by_number, aten.div.Tensor),
    "div_.Tensor": functools.partial(_by_number_, aten.div_.Tensor),
    "mul.Tensor": functools.partial(_by_number, aten.mul.Tensor),
    "mul_.Scalar": functools.partial(_by_number_, aten.mul_.Tensor),
    "mul_.Tensor": functools.partial(_by_number_, aten.mul_.Tensor),
    "pow.Tensor_Scalar": power,
    "sparse_mask": sparse_mask,
    "sub.Tensor": sub,
    "sub_.Tensor": sub_,
}


# ---- dense tensors among the operands


@dispatch.handler_with_sparse("aten::add.Tensor", "aten::sub.Tensor")
def _to_a_dense_one(func: Any, args: tuple, kwargs: dict[str, Any]) -> XLATensor:
    """`dense + sparse`, where functionalization has unwrapped the dense one."""
    x, y = args
    if x.is_sparse:
        raise RuntimeError(_SPARSE_FIRST)
    dtype = torch.promote_types(x.dtype, y.dtype)
    _check_factor(dtype, kwargs.get("alpha", 1))
    with SetExcludeDispatchKeyGuard(DispatchKey.Functionalize, False):
        target = to_functional(x).to(dtype, copy=True)
        return unwrap((add_ if func is aten.add.Tensor else sub_)(target, y, **kwargs))


def embedding_bag_backward(grad: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """`aten::_embedding_bag_backward` for autograd's key: a sparse gradient must not come from below functionalization.
    Torch's kernel for the CPU makes it of dense operators.
    """
    is_sparse = args[8] and views.has_memory(grad)
    key = DispatchKey.CPU if is_sparse else DispatchKey.Autograd
    return kernel_call_of(aten._embedding_bag_backward.default)(key, grad, *args, **kwargs)


def _with_sparse(new: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`Tensor.new`, which SparseAdam calls on its gradients, and whose C++ knows sparse tensors of some devices only
    (torch/csrc/utils/tensor_new.cpp).
    """

    @functools.wraps(new)
    def wrapped(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if type(self) is not torch.Tensor or not self.is_sparse or self.device.type != "xla":
            return new(self, *args, **kwargs)
        if len(args) > 1 and isinstance(args[1], torch.Tensor):
            return torch.sparse_coo_tensor(*args, **kwargs)
        device = kwargs.pop("device", None) or self.device
        size = args[0] if args and not isinstance(args[0], int) else args or (0,)
        return torch.empty(size, dtype=self.dtype, layout=torch.sparse_coo, device=device)

    return wrapped


def register(library: torch.library.Library) -> None:
    """Registers what works only once the devices are up."""
    library.impl("_embedding_bag_backward", embedding_bag_backward, "AutogradXLA")
    own = torch.library.Library("lazy_sparse", "DEF")  # torch's Python has no name for the key SparseXLA
    for name, kernel in KERNELS.items():
        overload = registry.overload(f"aten::{name}")
        if overload is None:
            raise ValueError(f"torch has no operator {name}")
        own.define(str(schema_of(overload)).removeprefix("aten::"))
        own.impl(name, kernel, "CompositeImplicitAutograd")
    _libraries.append(own)
    native.sparse().xla_register_sparse()
    torch.Tensor.new = _with_sparse(torch.Tensor.new)  # type: ignore[method-assign]
