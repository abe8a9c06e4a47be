"""Operators that torch takes apart, or leaves whole, in a way that does not suit an xla tensor: kernels above
functionalization that say the same in other operators.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from ..compat.torch import DispatchKey, OpOverload, assert_async, kernel_call_of, schema_of, tree_map
from ..compat.tracing import maybe_resize_out
from ..ops import registry
from . import views

aten = torch.ops.aten
_COMPOSITE = DispatchKey.CompositeImplicitAutograd

#: View operators whose `_copy` form users call. Below functionalization that form stands for the view itself.
COPIED = (
    "alias", "as_strided", "detach", "diagonal", "expand", "permute", "select.int", "slice.Tensor", "split.Tensor",
    "split_with_sizes", "squeeze", "squeeze.dim", "squeeze.dims", "t", "transpose.int", "unbind.int", "unfold",
    "unsqueeze", "view", "view.dtype", "view_as_complex", "view_as_real",
)  # fmt: skip


def _view_copy(view: OpOverload, copy: OpOverload, tensor: torch.Tensor, *args: Any) -> Any:
    """The `_copy` form of a view operator as a user calls it: a contiguous tensor, whatever the view's strides."""
    if not views.has_memory(tensor):
        return kernel_call_of(copy)(DispatchKey.Autograd, tensor, *args)
    if view is aten.view.default:  # whose `_copy` form alone takes what is no view
        return aten.reshape.default(tensor, *args).clone(memory_format=torch.contiguous_format)
    found = view(tensor, *args)
    return tree_map(lambda x: x.clone(memory_format=torch.contiguous_format), found)


def _view_copy_out(view: OpOverload, name: str, copy: OpOverload, tensor: torch.Tensor, *args: Any, out: Any) -> Any:
    """The same with `out=`, which takes contiguous strides where it has another size."""
    if not views.has_memory(out):
        return kernel_call_of(copy)(DispatchKey.Autograd, tensor, *args, out=out)
    if torch.is_grad_enabled() and (tensor.requires_grad or out.requires_grad):
        raise RuntimeError(
            f"{name}(): functions with out=... arguments don't support automatic differentiation, "
            "but one of the arguments requires grad."
        )
    found = view(tensor, *args)
    maybe_resize_out(out, found.shape)
    return out.copy_(found)


def one_hot(index: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """`aten::one_hot` with the checks of values that torch makes on the CPU only."""
    unknown = num_classes == -1
    if index.dtype is not torch.int64 or index.numel() == 0 or (unknown and not views.has_memory(index)):
        return kernel_call_of(aten.one_hot.default)(_COMPOSITE, index, num_classes)
    assert_async((index >= 0).all(), "Class values must be non-negative.")
    if unknown:
        num_classes = int(index.max().item()) + 1
    else:
        assert_async((index < num_classes).all(), "Class values must be smaller than num_classes.")
    classes = torch.arange(max(num_classes, 0), device=index.device)
    return (index.unsqueeze(-1) == classes).to(torch.int64)


def view_dtype(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`aten::view.dtype` with what torch asks of the place in memory, which is not known below functionalization."""
    if dtype.itemsize > tensor.dtype.itemsize and views.has_memory(tensor):
        offset = tensor.storage_offset()
        if offset % (dtype.itemsize // tensor.dtype.itemsize):
            last = offset + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
            memory = torch.empty(max(last + 1, 0), dtype=tensor.dtype, device="meta")
            memory.as_strided(tensor.shape, tensor.stride(), offset).view(dtype)  # raises
    return kernel_call_of(aten.view.dtype)(DispatchKey.Autograd, tensor, dtype)


def matmul_out(x: torch.Tensor, y: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    """`aten::matmul.out`, which would see the memory of `out` as a matrix, also where it is in another order."""
    if views.has_memory(out) and not out.is_contiguous() and not any(each.requires_grad for each in (x, y, out)):
        found = torch.matmul(x, y)
        if (found.shape, found.dtype) == (out.shape, out.dtype):
            return out.copy_(found)
    return kernel_call_of(aten.matmul.out)(_COMPOSITE, x, y, out=out)


def ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    *rest: Any,
) -> torch.Tensor:
    """`aten::ctc_loss.Tensor` with lengths from anywhere, as CUDA takes them. They are no numbers of the program, which
    other lengths would compile again.
    """
    lengths = (x.to(log_probs.device) for x in (input_lengths, target_lengths))
    return kernel_call_of(aten.ctc_loss.Tensor)(_COMPOSITE, log_probs, targets, *lengths, *rest)


def pack_padded_sequence(tensor: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> Any:
    """`aten::_pack_padded_sequence`: torch's own, which reads the lengths on the CPU, in operators that we have."""
    kernel = kernel_call_of(aten._pack_padded_sequence.default)
    return kernel(DispatchKey.CompositeExplicitAutograd, tensor, lengths, batch_first)


def polygamma_(tensor: torch.Tensor, n: int) -> torch.Tensor:
    """`aten::polygamma_`, for which torch has no functionalization."""
    return tensor.copy_(aten.polygamma.default(n, tensor))


def _with_scalars(name: str, tensors: Any, first: Any, second: Any, scalars: torch.Tensor) -> None:
    """`aten::_foreach_addcdiv_.Tensor` and its like, whose numbers are a tensor on the CPU on any device: torch's
    functionalization asks its meta kernel, for which they are elsewhere.
    """
    in_place = getattr(aten, f"_foreach_{name}_")
    if scalars.device.type != "cpu":
        raise RuntimeError(f"Expected scalars to be on CPU, got {scalars.device} instead.")
    if scalars.dim() == 1 and len(scalars) == len(tensors):
        in_place.ScalarList(tensors, first, second, scalars.tolist())
    else:  # torch's words
        small = [torch.zeros(1, device="cpu") for _ in tensors]
        in_place.Tensor(small, small, small, scalars)


#: overload of `linalg_matrix_rank` with `out=` → the one without
_MATRIX_RANKS = {
    "atol_rtol_tensor_out": aten.linalg_matrix_rank.atol_rtol_tensor,
    "atol_rtol_float_out": aten.linalg_matrix_rank.atol_rtol_float,
    "out": aten.linalg_matrix_rank.default,
    "out_tol_tensor": aten.linalg_matrix_rank.tol_tensor,
}


def _matrix_rank_out(rank: OpOverload, *args: Any, out: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    """Torch's own gives another tensor than `out`, which it leaves as it was, unless it may use the memory itself."""
    return aten.clone.out(rank(*args, **kwargs), out=out)


def register(library: torch.library.Library) -> None:
    """Registers these with torch's dispatcher."""
    library.impl("polygamma_", polygamma_, "Functionalize")
    library.impl("_pack_padded_sequence", pack_padded_sequence, "Functionalize")
    for key in ("AutogradXLA", "Functionalize"):
        library.impl("ctc_loss.Tensor", ctc_loss, key)
    for name in ("addcdiv", "addcmul"):
        library.impl(f"_foreach_{name}_.Tensor", functools.partial(_with_scalars, name), "AutogradXLA")
    for kind, rank in _MATRIX_RANKS.items():
        for key in ("AutogradXLA", "Functionalize"):
            library.impl(f"linalg_matrix_rank.{kind}", functools.partial(_matrix_rank_out, rank), key)
    for name in COPIED:
        view, copy = registry.overload(f"aten::{name}"), registry.overload(f"aten::{registry.copy_form(name)}")
        if view is None or copy is None:
            raise ValueError(f"torch has no view operator {name} with a copy")
        library.impl(copy, functools.partial(_view_copy, view, copy), "AutogradXLA")
        base, _, kind = name.partition(".")
        out = registry.overload(f"aten::{base}_copy.{kind}_out" if kind else f"aten::{base}_copy.out")
        if out is not None and len(schema_of(out).returns) == 1:  # not a list
            library.impl(out, functools.partial(_view_copy_out, view, f"{base}_copy", out), "AutogradXLA")
    library.impl("matmul.out", matmul_out, "AutogradXLA")
    library.impl("one_hot", one_hot, "AutogradXLA")
    library.impl("view.dtype", view_dtype, "AutogradXLA")
