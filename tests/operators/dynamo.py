"""The roads through `torch.compile(backend="openxla", fullgraph=True)`, one compiled call counted."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

import lazy_runtime
from lazy_runtime.common import metrics
from lazy_runtime.tensor.xla_tensor import unwrap

from .arguments import CPU, XLA, Target
from .case import Case
from .compare import Result, first_line
from .roads import attempt, called, drop_pending

#: Name of a road → where its tensors are.
ROADS = {"compile": XLA, "host": CPU}


class NotOneProgram(AssertionError):
    """A compiled call ran more than one program, or something besides it."""


class Road:
    """Compiles each call by itself.

    Attributes:
        may_break: the function gives something whose size depends on data, so its graph may break.
        target: where the tensors are.
        fallbacks: counters of the operators that were called from the programs.
        breaks: why torch cannot have some call in one graph with any backend; None if it can have all of them.
    """

    def __init__(self, may_break: bool, target: Target):
        self.may_break = may_break
        self.target = target
        self.fallbacks: set[str] = set()
        self.breaks: str | None = None

    def run(self, cases: Sequence[Case]) -> Iterator[Result]:
        for case in cases:
            yield self._one(case)
        torch._dynamo.reset()

    def _one(self, case: Case) -> Result:
        result = self._attempt(case, self.may_break)
        if result.error is not None and not self.may_break:
            refusal = refused_by_torch(case)
            if refusal is not None:
                self.breaks = first_line(refusal)
                return self._attempt(case, True)
        return result

    def _attempt(self, case: Case, may_break: bool) -> Result:
        torch._dynamo.reset()
        call = _Counted(may_break, self.fallbacks)
        result = attempt(case, self.target, call.wrap)
        if isinstance(result.error, NotOneProgram):
            # what else ran may have been for compiling; the second call tells
            result = attempt(case, self.target, call.wrap)
        if result.error is not None:
            drop_pending()
        return result


class _Counted:
    """A compiled function whose calls are checked to be one program each.

    Args:
        may_break: they need not be.
        fallbacks: where counters of called operators are added.
    """

    def __init__(self, may_break: bool, fallbacks: set[str]):
        self._may_break = may_break
        self._fallbacks = fallbacks
        self._made: Callable[..., Any] | None = None

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The compiled form of the first function that it is given, whatever comes later."""
        if self._made is None:
            self._made = torch.compile(function, backend="openxla", fullgraph=not self._may_break)
        return self._call

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        assert self._made is not None
        _finish(args, kwargs)
        metrics.clear()
        result = self._made(*args, **kwargs)
        self._fallbacks |= called()
        count = metrics.value("ExecuteComputation")
        beside = [name for name in metrics.names() if name.startswith("xla::") and not _is_view(name)]
        if not self._may_break and (count > 1 or beside):
            raise NotOneProgram(f"{count} programs instead of one, and recorded beside them: {beside}")
        return result


def refused_by_torch(case: Case) -> Exception | None:
    """What torch raises for the call in one graph on the CPU, with no backend behind it; None if nothing."""
    torch._dynamo.reset()
    result = attempt(case, CPU, lambda function: torch.compile(function, backend="aot_eager", fullgraph=True))
    return result.error if isinstance(result.error, Exception) else None


def _finish(*arguments: Any) -> None:
    """Computes the arguments: what they are made of is not the function's."""
    for leaf in tree_leaves(arguments):
        if isinstance(leaf, torch.Tensor) and leaf.device.type == "xla":
            unwrap(leaf)  # a view takes the writes to its base over
    lazy_runtime.sync(wait=True)


@functools.cache
def _is_view(counter: str) -> bool:
    """Whether a counter is of a view operator: AOTAutograd gives the user a view of an argument, or of another result,
    by taking it of that after the program.
    """
    if counter == "xla::_unsafe_view":
        return True  # its schema does not say so
    packet = getattr(torch.ops.aten, counter.removeprefix("xla::").removesuffix("_copy"), None)
    if packet is None:
        return False
    schemas = [getattr(packet, name)._schema for name in packet.overloads()]
    aliases = [returned.alias_info for schema in schemas for returned in schema.returns]
    return any(alias is not None and not alias.is_write for alias in aliases)
