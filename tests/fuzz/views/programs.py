"""Strategies that build random programs, statement by statement.

A program is executed on the CPU while it grows, so that its statements fit the tensors there are. Some do not, on
purpose: what torch raises for them is compared as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import hypothesis
import torch
from hypothesis import strategies as st

from .language import Machine, Program
from .shapes import FACTORS, broadcasts, has_views, is_expanded, places, shares
from .statements import METADATA, PURE, VIEWS, WRITES

Draw = Callable[[st.SearchStrategy[Any]], Any]

SHAPES = [(2, 3), (6,), (3, 2), (3, 3), (4,), (), (1,), (1, 3), (2, 3, 2), (2, 1, 3), (0,), (2, 0), (0, 1, 3)]


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
        name, x = self.pick()
        suffix = self.one_of(VIEWS)(self, x)
        if suffix is None:
            return False
        return self._new(f"{name}{suffix}")

    def pure(self) -> bool:
        name, x = self.pick()
        made = self.one_of(PURE)(self, name, x)
        return made is not None and self._new(made)

    def write(self) -> bool:
        name, x = self.pick()
        target, x = self._part(name, x)
        if x is None:
            return False
        found = self.one_of(WRITES)(self, target, x)
        if found is None:
            return False
        statement, sources = found
        if self.is_undefined(x, sources):
            return False
        if self.odds(3):
            statement = f"with torch.no_grad(): {statement}"
        self._add(statement)
        return True

    def metadata(self) -> bool:
        """Not of a tensor with a gradient under its views: where a device has no strides of its own, torch makes their
        gradients by the views' operators anew, from a base that looks otherwise by then.
        """
        name, x = self.pick()
        if x.requires_grad and has_views(x):
            return False
        statement = self.one_of(METADATA)(self, name, x)
        if statement is None:
            return False
        self._add(statement)
        return True

    def other(self) -> bool:
        name, x = self.pick()
        # off the CPU `tolist` begins with a copy that has a gradient, which torch refuses of some views
        seen = f"{name}.detach()" if x.requires_grad and x._is_view() else name
        options = ["sync()", f"read({seen}.tolist())"]
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

    def pick(self) -> tuple[str, torch.Tensor]:
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
                if broadcasts(other.shape, x.shape) or self.odds(12)
            ]
            if candidates:
                name, other = self.one_of(candidates)
                return name, [other]
        if self.odds(2):
            return f"values({tuple(x.shape)})", []
        return self.one_of(["2", "3", "-1", "0", "True", "0.5"]), []

    def is_undefined(self, target: torch.Tensor, sources: Sequence[torch.Tensor]) -> bool:
        """Whether torch leaves open what a write gives: elements that share a place (torch refuses only those of an
        expanded tensor), or a source that overlaps the target without being the same (torch refuses only some).
        """
        place = places(target)
        if is_expanded(target):
            return False
        if len(set(place)) < len(place):
            return True
        for source in sources:
            there = places(source)
            if shares(source, target) and there != place and not set(there).isdisjoint(place):
                return True
        return False
