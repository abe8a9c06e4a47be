"""The operators of which programs are made: views, pure operators, writes, and what changes how a tensor looks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from hypothesis import strategies as st

from .language import DTYPES
from .shapes import broadcasts, has_views, is_expanded, places, shares

if TYPE_CHECKING:
    from .programs import Sketch

# ---- views: what is appended to a variable


def _sizes_of_expand(s: Sketch, x: torch.Tensor) -> str:
    sizes = [s.one_of([size, -1]) if size != 1 else s.one_of([1, 2, 3]) for size in x.shape]
    return f".expand({([2] if s.odds(2) else []) + sizes})"


def _as_strided(s: Sketch, x: torch.Tensor, name: str = "as_strided") -> str | None:
    """Not beyond the elements of what has a gradient: those have none, until a write has torch make the view anew: by
    the base's strides, which gives them one, or where a device has no strides by the views' own operators, which does
    not (`_requires_grad`).
    """
    rank = s.draw(st.integers(0, 2))
    size = tuple(s.draw(st.integers(0 if s.odds(6) else 1, 3)) for _ in range(rank))
    stride = tuple(s.draw(st.integers(0 if s.odds(6) else 1, 3)) for _ in range(rank))
    offset = s.draw(st.integers(0, 3)) if not s.odds(3) else None
    if x.requires_grad and not _is_within(x, size, stride, offset):
        return None
    return f".{name}({size}, {stride}{'' if offset is None else f', {offset}'})"


def _is_within(x: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...], offset: int | None) -> bool:
    """Whether `as_strided` shows nothing that `x` does not show; what it refuses shows nothing."""
    try:
        shown = x.detach().as_strided(size, stride, offset)
    except RuntimeError:
        return x.numel() > 0
    return set(places(x)).issuperset(places(shown))


def _narrow(s: Sketch, x: torch.Tensor) -> str:
    dim = s.dim(x)
    start = s.draw(st.integers(-1, s.size(x, dim)))
    return f".narrow({dim}, {start}, {s.draw(st.integers(0, max(0, s.size(x, dim) - max(start, 0))))})"


def _select(s: Sketch, x: torch.Tensor) -> str:
    dim = s.dim(x)
    return f".select({dim}, {s.draw(st.integers(-1, max(0, s.size(x, dim) - 1)))})"


def _diagonal(s: Sketch, x: torch.Tensor) -> str:
    return f".diagonal({s.draw(st.integers(-1, 1))}, {s.dim(x)}, {s.dim(x)})"


def _unfold(s: Sketch, x: torch.Tensor) -> str:
    dim = s.dim(x)
    return f".unfold({dim}, {s.draw(st.integers(1, max(1, s.size(x, dim))))}, {s.draw(st.integers(1, 3))})"


def _unflatten(s: Sketch, x: torch.Tensor) -> str | None:
    dim = s.dim(x)
    size = s.size(x, dim)
    return f".unflatten({dim}, {s.one_of([(1, size), (size, 1), (-1, 1), (2, -1)])})"


# Bits of integers are no floats: most would be denormal, which XLA:CPU takes for zeros. And the bytes of a bool are 0
# and 1, but for what is written through a view.
KINDS = [("int64", "int32", "uint8"), ("float32", "complex64")]


def _view_dtype(s: Sketch, x: torch.Tensor) -> str | None:
    """Not of a conjugate: XLA computes it, and so takes it as other parts where the CPU, with its bit, refuses. Nor of
    what has no elements: torch's kernels for the CPU give `x * 2` strides (1, 0, 0) then, its meta kernels others.
    """
    if x.is_conj() or not x.numel():
        return None
    for kind in KINDS:
        if str(x.dtype).removeprefix("torch.") in kind:
            return f".view({s.one_of(kind)})"
    return None


VIEWS: list[Callable[[Sketch, torch.Tensor], str | None]] = [
    lambda s, x: s.index(x),
    lambda s, x: s.index(x),
    lambda s, x: ".t()",
    lambda s, x: f".transpose{s.dims(x)}",
    lambda s, x: f".permute({tuple(s.draw(st.permutations(range(x.dim()))))})",
    lambda s, x: f".movedim{s.dims(x)}",
    _select,
    _narrow,
    _sizes_of_expand,
    lambda s, x: f".view({s.shape_of(x.numel())})",
    lambda s, x: f".reshape({s.shape_of(x.numel())})",
    lambda s, x: ".view(-1)",
    lambda s, x: f".unsqueeze({s.draw(st.integers(-1, x.dim()))})",
    lambda s, x: s.one_of([".squeeze()", f".squeeze({s.dim(x)})"]),
    _diagonal,
    _unfold,
    _unflatten,
    lambda s, x: f".flatten({min(d := sorted(v % max(1, x.dim()) for v in s.dims(x)))}, {max(d)})",
    lambda s, x: f".split({s.draw(st.integers(1, 3))}, {s.dim(x)})",
    lambda s, x: f".chunk({s.draw(st.integers(1, 3))}, {s.dim(x)})",
    lambda s, x: f".unbind({s.dim(x)})",
    lambda s, x: f".split({s.draw(st.integers(1, 3))}, {s.dim(x)})[0]",
    lambda s, x: f".tensor_split({s.draw(st.integers(1, 3))}, {s.dim(x)})",
    _as_strided,
    _as_strided,
    lambda s, x: ".detach()",
    lambda s, x: ".data",
    lambda s, x: s.one_of([".mT", ".T" if x.dim() == 2 else ".mH"]),
    _view_dtype,
    lambda s, x: f".view_as({s.pick()[0]})",
    lambda s, x: f".expand_as({s.pick()[0]})",
    lambda s, x: s.one_of([".real", ".imag", ".conj()"]) if x.is_complex() else ".contiguous()",
    lambda s, x: "[:]",
    lambda s, x: ".ravel()",
]


# ---- pure operators: an expression


def _where(s: Sketch, name: str, x: torch.Tensor) -> str | None:
    return f"torch.where({name} > 1, {name}, {s.operand(x)[0]})" if not x.is_complex() else None


def _cat(s: Sketch, name: str, x: torch.Tensor) -> str:
    return f"torch.cat([{name}, {s.pick()[0]}], {s.dim(x)})" if s.odds(2) else f"torch.stack([{name}, {name}])"


def _take(s: Sketch, name: str, x: torch.Tensor) -> str | None:
    index = s.tensor_index(x)
    return None if index is None else f"{name}[{index}]"


PURE: list[Callable[[Sketch, str, torch.Tensor], str | None]] = [
    lambda s, name, x: f"{name} * {s.one_of(['2', '3', name, s.pick()[0]])}",
    lambda s, name, x: f"{name} + {s.one_of(['1', s.pick()[0]])}",
    lambda s, name, x: f"{name}.clone()",
    lambda s, name, x: f"{name}.contiguous()",
    lambda s, name, x: f"{name}.relu()" if x.dtype.is_floating_point else None,
    lambda s, name, x: f"{name}.sum({s.dim(x)})",
    lambda s, name, x: f"{name}.flip(0)",
    lambda s, name, x: f"{name}.to({s.one_of(list(DTYPES))})" if not x.is_complex() else None,
    _where,
    _cat,
    _take,
]


# ---- writes: a statement, and the variables that it reads
#
# Most operators refuse to write to an expanded tensor. `masked_fill_`, `index_fill_` and `index_put_` warn on the CPU
# that this is deprecated, and `tril_` and `triu_` forget to look; what they leave is up to the order in which their
# kernels happen to write. On xla they refuse.


def _operated(s: Sketch, target: str, x: torch.Tensor) -> tuple[str, list[torch.Tensor]]:
    other, sources = s.operand(x)
    return f"{target}.{s.one_of(['add_', 'mul_', 'sub_', 'copy_', 'add_'])}({other})", sources


def _copied(s: Sketch, target: str, x: torch.Tensor) -> tuple[str, list[torch.Tensor]]:
    other, sources = s.operand(x)
    return f"{target}.copy_({other})", sources


def _assigned(s: Sketch, target: str, x: torch.Tensor) -> tuple[str, list[torch.Tensor]] | None:
    index = s.index(x)
    part = s.value(f"{target}{index}")
    if part is None:
        return None
    other, sources = s.operand(part)
    if s.is_undefined(part, sources):
        return None
    if not (x.is_floating_point() or x.is_complex()) and any(y.requires_grad for y in sources):
        return None  # where no element is written the CPU leaves integers that require a gradient
    if any(not y.dim() and shares(y, x) for y in sources):
        return None  # on the CPU torch fills with what has no dimension, elsewhere it copies, which looks at overlaps
    return f"{target}{index} {s.one_of(['=', '=', '+=', '*='])} {other}", sources


def _indexed(s: Sketch, target: str, x: torch.Tensor) -> tuple[str, list[torch.Tensor]] | None:
    index = s.tensor_index(x)
    if index is None or is_expanded(x):
        return None
    part = s.value(f"{target}[{index}]")
    if part is None:
        return None
    other, sources = s.operand(part)
    if any(shares(source, x) for source in sources):  # torch refuses some of them, and which is up to the sizes
        return None
    value = s.value(other)
    if index.endswith(("True], device=device)", "False], device=device)")) and value is not None:
        if not broadcasts(value.shape, part.shape):
            return None  # how many places a mask selects shows when the program runs, and is said then
        if value.numel() == 1 and value.dtype is not x.dtype:
            return None  # the CPU reads such a value, takes other dtypes, and refuses what the target's cannot hold
    write = f"{target}[{index}] = {other}"
    if s.odds(2):
        if other[0] not in "tv":
            other = f"torch.tensor({other}, dtype={target}.dtype, device=device)"
        write = f"{target}.index_put_(({index},), {other}, accumulate={s.draw(st.booleans())})"
    return write, sources


def _masked(s: Sketch, target: str, x: torch.Tensor) -> tuple[str, list[torch.Tensor]] | None:
    if x.is_complex() or is_expanded(x):
        return None
    return s.one_of([f"{target}[{target} > 1] = {s.one_of([0, 2.5])}", f"{target}.masked_fill_({target} < 0, 4)"]), []


def _out(s: Sketch, target: str, x: torch.Tensor) -> tuple[str, list[torch.Tensor]] | None:
    name, other = s.pick()
    if other.shape != x.shape:
        return None
    return f"torch.add({name}, 1, out={target})", [other]


def _index_filled(s: Sketch, target: str, x: torch.Tensor) -> tuple[str, list[torch.Tensor]] | None:
    if not x.dim():
        return None
    dim = s.draw(st.integers(-x.dim(), x.dim() - 1))
    if not x.shape[dim]:
        return None
    index = f"torch.tensor([{s.draw(st.integers(0, x.shape[dim] - 1))}], device=device)"
    one = f"{target}.narrow({dim}, 0, 1) * 3"
    if is_expanded(x):
        return None
    return s.one_of(
        [
            f"{target}.index_fill_({dim}, {index}, 3)",
            f"{target}.index_copy_({dim}, {index}, {one})",
            f"{target}.index_add_({dim}, {index}, {one})",
        ]
    ), []


WRITES: list[Callable[[Sketch, str, torch.Tensor], tuple[str, list[torch.Tensor]] | None]] = [
    _operated,
    _operated,
    _assigned,
    _assigned,
    _copied,
    _indexed,
    _masked,
    _out,
    _index_filled,
    lambda s, target, x: (f"{target}.fill_({s.one_of([1, 2.5])})", []),
    lambda s, target, x: (f"{target}.zero_()", []),
    lambda s, target, x: (f"{target}.{s.one_of(['relu_()', 'clamp_(0, 2)', 'neg_()', 'abs_()', 'square_()'])}", []),
    lambda s, target, x: (f"{target}.fill_diagonal_(3)", []),
    # of an expanded tensor of bools two things are wrong, and the CPU says the other first
    lambda s, target, x: None if is_expanded(x) and x.dtype is torch.bool else (f"{target}.cumsum_(0)", []),
    lambda s, target, x: None if is_expanded(x) else (f"{target}.{s.one_of(['tril_()', 'triu_(1)'])}", []),
    lambda s, target, x: (f"{target}.add_({target})", [x]),
    lambda s, target, x: (f"{target}.mul_({target}.sum())", []),
    lambda s, target, x: (f"torch._foreach_mul_([{target}], 2)", []),
    lambda s, target, x: (f"{target}.addcmul_({target}, values({tuple(x.shape)}))", [x]),
]


# ---- what changes how a variable looks


def _resize(s: Sketch, name: str, x: torch.Tensor) -> str | None:
    shape = s.one_of([(2,), (1, 2), (2, 2), (3,), (), (0,), (2, 3), (7,), (2, 3, 3)])
    held = x.untyped_storage().nbytes() // x.dtype.itemsize - int(x.storage_offset())
    count = torch.Size(shape).numel()
    if count <= held:
        return f"{name}.resize_({shape})"
    if has_views(x):
        return None  # xla refuses to let memory grow under other tensors
    return f"{name}.resize_({shape}).fill_(1)"  # torch leaves open what the new elements hold


def _requires_grad(s: Sketch, name: str, x: torch.Tensor) -> str | None:
    """Not off under views that were made while it was on, nor on for a view: torch has views of it made again from a
    base that needs no gradient, and where a device has no strides of its own it asserts that there is one
    (torch/csrc/autograd/variable.cpp).
    """
    wanted = s.one_of([True, False])
    if x._is_view() if wanted else has_views(x):
        return None
    return f"{name}.requires_grad_({wanted})"


def _data(s: Sketch, name: str, x: torch.Tensor) -> str | None:
    """`x.data = y`; not with an alias of itself, of which AOTAutograd makes no sense where tensors are functional ones
    (torch 2.13, its `aot_eager` too): it refuses, or loses `requires_grad`.
    """
    other, y = s.pick()
    return None if shares(x, y) else f"{name}.data = {other}"


def _set(s: Sketch, name: str, x: torch.Tensor) -> str | None:
    """Not of a view: torch takes it for one of its old base still, and has its gradient made over that. Nor under views
    where gradients are needed then: torch has the views made again from what is no base of theirs any more, which only
    a device with strides can do at all (`_requires_grad`). Nor with an alias of itself, as `_data`.
    """
    other, y = s.pick()
    if x._is_view() or shares(x, y) or (has_views(x) and (x.requires_grad or y.requires_grad)):
        return None
    return f"{name}.set_({other})"


METADATA: list[Callable[[Sketch, str, torch.Tensor], str | None]] = [
    lambda s, name, x: f"{name}.t_()",
    lambda s, name, x: f"{name}.transpose_{s.dims(x)}",
    lambda s, name, x: f"{name}.squeeze_({s.one_of(['', s.dim(x)])})",
    lambda s, name, x: f"{name}.unsqueeze_({s.draw(st.integers(0, x.dim()))})",
    lambda s, name, x: f"{name}.swapaxes_{s.dims(x)}",
    lambda s, name, x: f"{name}{view}" if (view := _as_strided(s, x, "as_strided_")) else None,
    _data,
    _set,
    _resize,
    lambda s, name, x: f"{name}.detach_()",
    _requires_grad,
]
