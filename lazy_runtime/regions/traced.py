"""A training step in a region need not be recorded at each call: Dynamo traces it, and its guards say when that holds.

Only a function that Dynamo takes whole, as one graph with its backward pass, is handed to it. A trace takes seconds and
saves milliseconds, so the first calls with the same kinds of arguments are recorded. Anything else is recorded at each
call. What is traced becomes one node of what the region executes; all else about the region is as ever.
"""

from __future__ import annotations

import functools
import inspect
import operator
import threading
import types
import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from ..common import metrics, output
from ..compat import dynamo
from ..compat.torch import tree_flatten
from ..platform import replicas
from . import TRACE_AFTER
from .extra_guards import Unguarded

#: Dynamo's own limit for what it compiles of one function (`torch._dynamo.config.recompile_limit`).
_MOST = 8

#: Kinds of arguments that are counted at once; a function with more of them is counted anew.
_MOST_KINDS = 1024

# what torch warns of while Dynamo looks at `.grad` of any tensor, and at all there is of a class
_DYNAMOS_WARNINGS: tuple[tuple[str, type[Warning]], ...] = (
    ("The .grad attribute of a Tensor that is not a leaf", UserWarning),
    (".*should not be instantiated", DeprecationWarning),
    ("`torch.jit.script_method` is deprecated", Warning),  # of another kind from torch 2.14 on
)


class _Thread(threading.local):
    running: Traced | None = None


_thread = _Thread()


class Traced:
    """Calls a function, as Dynamo has traced it where it can.

    Args:
        f: the function.
        name: what logs call it.
        trace_after: calls with the same kinds of arguments that are recorded first; None for all.
    """

    def __init__(self, f: Callable[..., Any], name: str, trace_after: int | None = TRACE_AFTER):
        self._f = f
        self._name = name
        self._function, self._bound = _parts(f)
        self._is_recorded = self._function is None or trace_after is None
        self._trace_after = trace_after or 0
        self._calls: dict[Hashable, int] = {}
        self._began = 0
        self._compiled: Callable[..., Any] | None = None
        self._copied: tuple[Any, ...] = ()
        self._unguarded = Unguarded()
        self._undo: list[Callable[[], None]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # without gradients it is no training step
        if not self._is_recorded and torch.is_grad_enabled() and self._pays(args, kwargs):
            try:
                if self._compiled is None or not self._is_same():
                    return self._begin(args, kwargs)
                return self._run(args, kwargs)
            except _refusals() as error:
                self._record(_reason(error))
        return self._f(*args, **kwargs)

    def _pays(self, args: Any, kwargs: Any) -> bool:
        """Whether so many calls with such arguments have been recorded that a trace is worth its time."""
        if not self._trace_after:
            return True
        kind = _kind(args, kwargs)
        count = self._calls.get(kind, 0)
        if count >= self._trace_after:
            return True
        if not count and len(self._calls) >= _MOST_KINDS:
            self._calls.clear()
        self._calls[kind] = count + 1
        return False

    def _run(self, args: Any, kwargs: Any) -> Any:
        compiled: Any = self._compiled
        _thread.running = self
        try:
            return compiled(*self._bound, *args, **kwargs)
        finally:
            _thread.running = None

    @property
    def is_running(self) -> bool:
        """Whether the calling thread is in what was traced."""
        return _thread.running is self

    def on_recording(self, undo: Callable[[], None]) -> None:
        """Calls `undo` if the function is recorded after all."""
        self._undo.append(undo)

    def _is_same(self) -> bool:
        """Whether what Dynamo's guards do not see is as it was."""
        return all(map(operator.is_, _copied(self._function), self._copied)) and self._unguarded.is_same()

    def _begin(self, args: Any, kwargs: Any) -> Any:
        """A call for which nothing is known."""
        self._began += 1
        if self._began > _MOST:
            raise _Refused("it has changed too often in ways that Dynamo's guards do not see")
        if replicas.place().size > 1:
            raise _Refused("all replicas must run the same programs, which one that cannot be traced would not")
        self._unguarded = Unguarded()
        self._compiled = self._compile()
        with warnings.catch_warnings():
            for message, category in _DYNAMOS_WARNINGS:
                warnings.filterwarnings("ignore", message, category)
            return self._compiled(*self._bound, *args, **kwargs)

    def _compile(self) -> Callable[..., Any]:
        self._copied = code, defaults, closure = _copied(self._function)
        function: Any = self._function
        # with code of its own: Dynamo keeps what it has compiled with the code
        copy = types.FunctionType(code.replace(), function.__globals__, function.__name__, defaults, closure)
        copy.__kwdefaults__ = function.__kwdefaults__
        copy.__dict__.update(function.__dict__)
        options: Any = {"whole_step": True, "guard_filter_fn": self._note}
        return torch.compile(copy, backend="openxla", fullgraph=True, options=options)

    def _note(self, guards: Sequence[Any]) -> list[bool]:
        """Is shown all guards, and keeps them."""
        self._unguarded.note(guard.value for guard in guards if guard.has_value)
        return [True] * len(guards)

    def _record(self, reason: str) -> None:
        """From now on each call is recorded."""
        self._is_recorded = True
        self._compiled = None
        metrics.count("RegionNotTraced")
        output.log("xla_recompiles", f"{self._name} is recorded at each call: {reason}")
        for undo in self._undo:
            undo()
        self._undo.clear()


class _Refused(Exception):
    """The function is not handed to Dynamo."""


def _parts(f: Any) -> tuple[types.FunctionType | None, tuple[Any, ...]]:
    """The Python function that is called and what comes before the arguments; no function if there is none, or Dynamo
    has been told something about it.
    """
    if isinstance(f, functools.partial) and not f.keywords:
        function, bound = _parts(f.func)
        return function, (*bound, *f.args)
    function, bound = (f.__func__, (f.__self__,)) if isinstance(f, types.MethodType) else (f, ())
    if not isinstance(function, types.FunctionType) or dynamo.is_compiled(function):
        return None, ()
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        return None, ()
    return function, bound


def _kind(args: Any, kwargs: Any) -> Hashable:
    """What equal calls have in common: the nesting of the arguments, and of each tensor the shape and the dtype."""
    leaves, nesting = tree_flatten((args, kwargs))
    kinds = [(x.shape, x.dtype, x.device) if isinstance(x, torch.Tensor) else type(x) for x in leaves]
    return nesting, *kinds


def _copied(function: Any) -> tuple[Any, ...]:
    return function.__code__, function.__defaults__, function.__closure__


@functools.cache
def _refusals() -> tuple[type[Exception], ...]:
    """What is raised before anything has been run."""
    return _Refused, dynamo.TorchDynamoException, dynamo.FailOnRecompileLimitHit


def _reason(error: Exception) -> str:
    """What Dynamo says, in one line, and the user's line."""
    inner = getattr(error, "inner_exception", error)
    lines = [line.strip() for line in str(inner).splitlines()] or [type(inner).__name__]
    explained = [line for line in lines[1:] if line.startswith("Explanation: ")][:1]
    place = [line for line in lines[1:] if line.startswith("File ")][-1:]
    return " ".join([lines[0], *explained, *place])
