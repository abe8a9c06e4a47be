"""Strategies that build random programs, statement by statement.

A program is executed on the CPU while it grows, so that its statements fit the tensors there are. Some do not, on
purpose: what torch raises for them is compared as well.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import hypothesis
import torch
from hypothesis import strategies as st

from .language import DTYPES, Machine, Program, positions

Draw = Callable[[st.SearchStrategy[Any]], Any]

SHAPES = [(2, 3), (6,), (3, 2), (3, 3), (4,), (), (1,), (1, 3), (2, 3, 2), (2, 1, 3), (0,), (2, 0), (0, 1, 3)]
SMALL = st.integers(-2, 3)


@st.composite
def programs(draw: Draw) -> Program:
    """Any program."""
    sketch = Sketch(draw)
    for _ in range(draw(st.integers(1, 2))):
        sketch.base()
    for _ in range(draw(st.integers(0, 3))):
        sketch.statement()
    before = sketch.cut()
    for _ in range(draw(st.integers(1, 8))):
        sketch.statement()
    inside = sketch.cut()
    if draw(st.booleans()):
        sketch.backward()
    if sketch.odds(4):  # what is looked at in the end is written to across a sync then
        sketch._add("sync()")
    return Program(before, inside, sketch.cut())


def generate(seed: int, count: int) -> list[Program]:
    """So many programs, the same ones for the same seed."""
    found: list[Program] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(programs())
    def collect(program: Program) -> None:
        found.append(program)

    collect()
    return found


class Sketch:
    """A program in the making.

    Attributes:
        machine: has run all statements so far, on the CPU.
    """

    def __init__(self, draw: Draw):
        self.draw = draw
        self.machine = Machine("cpu")
        self._statements: list[str] = []
        self._made = 0

    def cut(self) -> tuple[str, ...]:
        """The statements since the last cut."""
        found, self._statements = tuple(self._statements), []
        return found

    def one_of(self, options: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(options))

    def odds(self, one_in: int) -> bool:
        """True once in so many times; shrinks to False."""
        return self.draw(st.integers(0, one_in - 1)) == one_in - 1

    # ---- statements

    def base(self) -> None:
        """A tensor that is no view."""
        shape = self.one_of(SHAPES)
        dtype = self.one_of(["float32"] * 5 + ["int64", "bool", "float64", "complex64", "uint8"])
        if self.odds(4):
            order = self.draw(st.permutations(range(len(shape))))
            step, strides = 1, [0] * len(shape)
            for dim in order:
                strides[dim] = step
                step = step * max(1, shape[dim]) + (1 if self.odds(6) else 0)
            made = f"strided({shape}, {tuple(strides)}, {dtype})"
        else:
            made = f"values({shape}, {dtype})"
        if dtype in ("float32", "float64", "complex64") and self.odds(3):
            made += ".requires_grad_()"
        self._add(f"t{self._made} = {made}", 1)

    def statement(self) -> None:
        """Any statement that torch gives a meaning to; nothing if a few draws find none."""
        for _ in range(3):
            kind = self.one_of([self.view] * 5 + [self.write] * 5 + [self.pure] * 2 + [self.metadata, self.other])
            if kind():
                return

    def view(self) -> bool:
        name, x = self._pick()
        suffix = self.one_of(VIEWS)(self, x)
        if suffix is None:
            return False
        return self._new(f"{name}{suffix}")

    def pure(self) -> bool:
        name, x = self._pick()
        made = self.one_of(PURE)(self, name, x)
        return made is not None and self._new(made)

    def write(self) -> bool:
        name, x = self._pick()
        target, x = self._part(name, x)
        if x is None:
            return False
        found = self.one_of(WRITES)(self, target, x)
        if found is None:
            return False
        statement, sources = found
        if self._is_undefined(x, sources):
            return False
        if self.odds(3):
            statement = f"with torch.no_grad(): {statement}"
        self._add(statement)
        return True

    def metadata(self) -> bool:
        name, x = self._pick()
        statement = self.one_of(METADATA)(self, name, x)
        if statement is None:
            return False
        self._add(statement)
        return True

    def other(self) -> bool:
        name, x = self._pick()
        options = ["sync()", f"read({name}.tolist())"]
        if x.numel() == 1:
            options.append(f"read({name}.item())")
        if len(self.machine.names) > 1:
            options.append(f"del {name}")
        statement = self.one_of(options)
        self._add(statement)
        return True

    def backward(self) -> None:
        names = [name for name, x in self.machine.tensors().items() if x.requires_grad and x.numel()]
        if names:
            chosen = [name for name in names if not self.odds(4)]
            terms = [f"{x}.abs().sum()" if self.machine.names[x].is_complex() else f"{x}.sum()" for x in chosen]
            if terms:
                self._add(f"({' + '.join(terms)}).backward()")

    def _new(self, expression: str) -> bool:
        """A statement that makes one tensor, or several of a list of them."""
        self._add(f"t{self._made} = {expression}", 1)
        made = self.machine.names.get(f"t{self._made - 1}")
        if isinstance(made, torch.Tensor) or made is None:
            return True
        # a list or tuple: not a program variable, so the statement unpacks it
        self._statements.pop()
        del self.machine.names[f"t{self._made - 1}"]
        self._made -= 1
        if not 0 < len(made) < 4:
            return False
        names = [f"t{self._made + i}" for i in range(len(made))]
        self._add(f"{', '.join(names)}{',' if len(names) == 1 else ''} = {expression}", len(names))
        return True

    def _add(self, statement: str, makes: int = 0) -> None:
        self._made += makes
        self._statements.append(statement)
        self.machine.step(statement)

    # ---- arguments

    def _pick(self) -> tuple[str, torch.Tensor]:
        tensors = list(self.machine.tensors().items())
        return tensors[-1 - self.draw(st.integers(0, len(tensors) - 1))]

    def _part(self, name: str, x: torch.Tensor) -> tuple[str, torch.Tensor | None]:
        """What a write goes to: a variable, or a part of one that gets no name."""
        if not self.odds(3):
            return name, x
        target = f"{name}{self.index(x)}"
        return target, self.value(target)

    def value(self, expression: str) -> torch.Tensor | None:
        """What an expression gives on the CPU, by itself; None if it raises."""
        try:
            found = eval(expression, self.machine.globals, self.machine.names)
        except Exception:
            return None
        return found if isinstance(found, torch.Tensor) else None

    def dim(self, x: torch.Tensor) -> int:
        rank = max(1, x.dim())
        if self.odds(30):
            return rank
        return self.draw(st.integers(-rank, rank - 1))

    def dims(self, x: torch.Tensor) -> tuple[int, int]:
        return self.dim(x), self.dim(x)

    def size(self, x: torch.Tensor, dim: int) -> int:
        return x.shape[dim] if x.dim() and -x.dim() <= dim < x.dim() else 1

    def shape_of(self, count: int) -> tuple[int, ...]:
        """Sizes with so many elements."""
        return self.one_of(FACTORS.get(count, [(count,)]))

    def index(self, x: torch.Tensor) -> str:
        """A basic index, or a selection of parts."""
        items = []
        for dim in range(x.dim()):
            size = x.shape[dim]
            kind = self.draw(st.integers(0, 5))
            if kind == 0:
                items.append(":")
            elif kind == 1 and size:
                items.append(str(self.draw(st.integers(-size, size - 1))))
            elif kind in (2, 3):
                start, stop = self.draw(st.integers(0, 2)), self.draw(st.integers(-1, 4))
                items.append(f"{start or ''}:{stop if stop else ''}:{self.one_of(['', 2])}".rstrip(":") or ":")
                if ":" not in items[-1]:
                    items[-1] += ":"
            elif kind == 4:
                items += ["None", ":"]
            else:
                items.append("...")
                break
        return f"[{', '.join(items) or '...'}]"

    def tensor_index(self, x: torch.Tensor) -> str | None:
        """An index made of tensors: distinct positions of the first dimension, or a mask."""
        if x.dim() == 0 or x.shape[0] == 0:
            return None
        if self.odds(2):
            count = self.draw(st.integers(1, x.shape[0]))
            places = self.draw(st.permutations(range(x.shape[0])))[:count]
            if self.odds(3):
                places = [place - x.shape[0] for place in places]
            return f"torch.tensor({places}, device=device)"
        mask = [self.draw(st.booleans()) for _ in range(x.shape[0])]
        return f"torch.tensor({mask}, device=device)"

    def operand(self, x: torch.Tensor) -> tuple[str, list[torch.Tensor]]:
        """Something to write to `x`: a number, a tensor, or another variable that may fit."""
        if self.odds(2):
            candidates = [
                (name, other)
                for name, other in self.machine.tensors().items()
                if _broadcasts(other.shape, x.shape) or self.odds(12)
            ]
            if candidates:
                name, other = self.one_of(candidates)
                return name, [other]
        if self.odds(2):
            return f"values({tuple(x.shape)})", []
        return self.one_of(["2", "3", "-1", "0", "True", "0.5"]), []

    def _is_undefined(self, target: torch.Tensor, sources: Sequence[torch.Tensor]) -> bool:
        """Whether torch leaves open what a write gives: elements that share a place (torch refuses only those of an
        expanded tensor), or a source that overlaps the target without being the same (torch refuses only some)."""
        place = _places(target)
        if _is_expanded(target):
            return False
        if len(set(place)) < len(place):
            return True
        for source in sources:
            there = _places(source)
            if _shares(source, target) and there != place and not set(there).isdisjoint(place):
                return True
        return False


def _is_expanded(x: torch.Tensor) -> bool:
    return any(step == 0 and size > 1 for step, size in zip(x.stride(), x.shape, strict=True))


def _broadcasts(shape: Sequence[int], to: Sequence[int]) -> bool:
    try:
        return tuple(torch.broadcast_shapes(shape, to)) == tuple(to)
    except RuntimeError:
        return False


def _shares(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.untyped_storage()._cdata == y.untyped_storage()._cdata


def _places(x: torch.Tensor) -> list[int]:
    """The bytes of the storage that the elements cover, in order."""
    size = x.dtype.itemsize
    return [place * size + byte for place in positions(x).reshape(-1).tolist() for byte in range(size)]


def _factors(count: int) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [(count,)]
    found += [(a, b) for a in range(1, count + 1) for b in range(1, count + 1) if a * b == count]
    found += [(a, b, c) for a, b, c in itertools.product(range(1, 4), repeat=3) if a * b * c == count]
    return found


FACTORS = {count: _factors(count) for count in range(1, 19)} | {0: [(0,), (0, 2), (2, 0), (1, 0, 3)]}
FACTORS[1].append(())


# ---- views: what is appended to a variable


def _sizes_of_expand(s: Sketch, x: torch.Tensor) -> str:
    sizes = [s.one_of([size, -1]) if size != 1 else s.one_of([1, 2, 3]) for size in x.shape]
    return f".expand({([2] if s.odds(2) else []) + sizes})"


def _as_strided(s: Sketch, x: torch.Tensor, name: str = "as_strided") -> str:
    rank = s.draw(st.integers(0, 2))
    size = tuple(s.draw(st.integers(0 if s.odds(6) else 1, 3)) for _ in range(rank))
    stride = tuple(s.draw(st.integers(0 if s.odds(6) else 1, 3)) for _ in range(rank))
    offset = "" if s.odds(3) else f", {s.draw(st.integers(0, 3))}"
    return f".{name}({size}, {stride}{offset})"


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
    lambda s, x: f".view_as({s._pick()[0]})",
    lambda s, x: f".expand_as({s._pick()[0]})",
    lambda s, x: s.one_of([".real", ".imag", ".conj()"]) if x.is_complex() else ".contiguous()",
    lambda s, x: "[:]",
    lambda s, x: ".ravel()",
]


# ---- pure operators: an expression


def _where(s: Sketch, name: str, x: torch.Tensor) -> str | None:
    return f"torch.where({name} > 1, {name}, {s.operand(x)[0]})" if not x.is_complex() else None


def _cat(s: Sketch, name: str, x: torch.Tensor) -> str:
    return f"torch.cat([{name}, {s._pick()[0]}], {s.dim(x)})" if s.odds(2) else f"torch.stack([{name}, {name}])"


def _take(s: Sketch, name: str, x: torch.Tensor) -> str | None:
    index = s.tensor_index(x)
    return None if index is None else f"{name}[{index}]"


PURE: list[Callable[[Sketch, str, torch.Tensor], str | None]] = [
    lambda s, name, x: f"{name} * {s.one_of(['2', '3', name, s._pick()[0]])}",
    lambda s, name, x: f"{name} + {s.one_of(['1', s._pick()[0]])}",
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
    if s._is_undefined(part, sources):
        return None
    return f"{target}{index} {s.one_of(['=', '=', '+=', '*='])} {other}", sources


def _indexed(s: Sketch, target: str, x: torch.Tensor) -> tuple[str, list[torch.Tensor]] | None:
    index = s.tensor_index(x)
    if index is None or _is_expanded(x):
        return None
    part = s.value(f"{target}[{index}]")
    if part is None:
        return None
    other, sources = s.operand(part)
    if any(_shares(source, x) for source in sources):  # torch refuses some of them, and which is up to the sizes
        return None
    value = s.value(other)
    if (
        index.endswith(("True], device=device)", "False], device=device)"))
        and value is not None
        and not _broadcasts(value.shape, part.shape)
    ):
        return None  # how many places a mask selects shows when the program runs, and is said then
    write = f"{target}[{index}] = {other}"
    if s.odds(2):
        if other[0] not in "tv":
            other = f"torch.tensor({other}, dtype={target}.dtype, device=device)"
        write = f"{target}.index_put_(({index},), {other}, accumulate={s.draw(st.booleans())})"
    return write, sources


def _masked(s: Sketch, target: str, x: torch.Tensor) -> tuple[str, list[torch.Tensor]] | None:
    if x.is_complex() or _is_expanded(x):
        return None
    return s.one_of([f"{target}[{target} > 1] = {s.one_of([0, 2.5])}", f"{target}.masked_fill_({target} < 0, 4)"]), []


def _out(s: Sketch, target: str, x: torch.Tensor) -> tuple[str, list[torch.Tensor]] | None:
    name, other = s._pick()
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
    if _is_expanded(x):
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
    lambda s, target, x: (f"{target}.{s.one_of(['fill_diagonal_(3)', 'cumsum_(0)'])}", []),
    lambda s, target, x: None if _is_expanded(x) else (f"{target}.{s.one_of(['tril_()', 'triu_(1)'])}", []),
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
    if torch._C._storage_Use_Count(x.untyped_storage()._cdata) > 2:
        return None  # xla refuses to let memory grow under other tensors
    return f"{name}.resize_({shape}).fill_(1)"  # torch leaves open what the new elements hold


METADATA: list[Callable[[Sketch, str, torch.Tensor], str | None]] = [
    lambda s, name, x: f"{name}.t_()",
    lambda s, name, x: f"{name}.transpose_{s.dims(x)}",
    lambda s, name, x: f"{name}.squeeze_({s.one_of(['', s.dim(x)])})",
    lambda s, name, x: f"{name}.unsqueeze_({s.draw(st.integers(0, x.dim()))})",
    lambda s, name, x: f"{name}.swapaxes_{s.dims(x)}",
    lambda s, name, x: name + _as_strided(s, x, "as_strided_"),
    lambda s, name, x: f"{name}.data = {s._pick()[0]}",
    lambda s, name, x: f"{name}.set_({s._pick()[0]})",
    _resize,
    lambda s, name, x: f"{name}.detach_()",
    lambda s, name, x: f"{name}.requires_grad_({s.one_of([True, False])})",
]
