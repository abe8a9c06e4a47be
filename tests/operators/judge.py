"""One row: its calls on the CPU and on a road, and what to say about the difference."""

from __future__ import annotations

import functools
import sys
import time
from typing import Any

import torch

import lazy_runtime
from lazy_runtime.common import metrics
from lazy_runtime.ops import registry

from . import dynamo, function, roads, tolerances
from .arguments import CPU, EXACT, XLA
from .case import Case
from .cases import cases
from .compare import Comparison, first_line
from .rows import FUNCTION, Row
from .wrong_calls import refusals

Outcome = dict[str, Any]

#: what torch's tags say of an operator whose result's size, or Python value, depends on data
_BREAKS = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)


def prepare_process() -> None:
    """Sets a process up for judging."""
    roads.quiet()
    torch.set_num_threads(1)
    _keep_seeds()
    lazy_runtime.device()


def _keep_seeds() -> None:
    """Replaces the databases' `wrapper_set_seed`: it seeds inside of the function under test, which Dynamo cannot
    trace, and restores the generator, from which we see that a call is random. The calls are seeded here anyway.
    """

    def call(op: Any, *args: Any, **kwargs: Any) -> Any:
        return op(*args, **kwargs)

    import torch.testing._internal.common_methods_invocations  # noqa: F401  the last to import the others

    for name, module in list(sys.modules.items()):
        if name.startswith("torch.testing._internal") and hasattr(module, "wrapper_set_seed"):
            module.wrapper_set_seed = call  # type: ignore[attr-defined]


def judge(row: Row, limit: int) -> Outcome:
    """The outcome of a row, as it is stored: `outcome` is `pass` or `fail`, `error` the first difference.

    Args:
        limit: how many samples, 0 for all.
    """
    start = time.monotonic()
    outcome: Outcome = {**row.__dict__, "outcome": "fail", "samples": 0, "failed": 0}
    try:
        outcome.update(refusals.judge(row) if row.direction == "wrong" else _judge(row, cases(row, limit)))
    except Exception as error:
        outcome["error"] = f"the runner failed: {first_line(error)}"
    outcome["seconds"] = round(time.monotonic() - start, 2)
    return outcome


def _judge(row: Row, found: list[Case]) -> Outcome:
    expected = [roads.attempt(case, CPU) for case in found]
    called: set[torch._ops.OpOverload] = set()
    if row.direction == "forward" or row.road in dynamo.ROADS:
        called = set().union(*(roads.overloads(case) for case in found))
    may_break = any(tag in overload.tags for overload in called for tag in _BREAKS)
    metrics.clear()
    failures = []
    compiled = dynamo.Road(may_break, dynamo.ROADS.get(row.road, XLA))
    road = {"lazy": roads.lazy, "eager": roads.eager, FUNCTION: function.run}.get(row.road, compiled.run)
    comparison = Comparison(
        row.entry,
        row.direction,
        values=row.entry not in tolerances.UNDEFINED,
        strides=row.direction not in ("backward", "layouts") and row.road != FUNCTION,  # arrays of jax have none
        errors=row.road not in dynamo.ROADS,  # Dynamo has its own
        zeros=row.road == FUNCTION,  # jax knows no other
    )
    for case, reference, result in zip(found, expected, road(found), strict=True):
        problem = comparison.difference(reference, result, functools.partial(roads.attempt, case, EXACT))
        if problem is not None:
            failures.append((problem, case.summary))
    outcome: Outcome = {"outcome": "fail" if failures else "pass", "samples": len(found), "failed": len(failures)}
    if failures:
        outcome["error"], outcome["sample"] = failures[0][0], failures[0][1][:600]
        outcome["errors"] = list(dict.fromkeys(problem for problem, _ in failures))[:5]
    if any(reference.random for reference in expected):
        outcome["random"] = True
    if row.road in dynamo.ROADS and (may_break or compiled.breaks):
        outcome["breaks"] = compiled.breaks or "a size depends on data"
    outcome.update(_route(row, called, sorted(compiled.fallbacks | roads.called())))
    return outcome


def _route(row: Row, called: set[torch._ops.OpOverload], fallbacks: list[str]) -> Outcome:
    """Who served the row: `called` if there was a fallback, `decomposed` if some operator that the entry comes down to
    has no lowering of its own, else `lowered`.
    """
    if row.direction != "forward":
        return {"called": fallbacks} if fallbacks else {}
    without = sorted(overload.name() for overload in called if not _has_lowering(overload))
    route = "called" if fallbacks else "decomposed" if without else "lowered"
    return {"route": route, "called": fallbacks, "without_lowering": without}


def _has_lowering(overload: torch._ops.OpOverload) -> bool:
    """Whether the overload, or the functional form of an in-place one, is one node of the graph."""
    from lazy_runtime.recording import dispatch

    if overload in registry.table:
        return True
    function = dispatch._handlers.get(overload)
    if function is not None and function.__module__ != "lazy_runtime.recording.decompose":
        return True
    name = overload.name()
    packet, _, rest = name.partition(".")
    functional = registry.overload(packet.removesuffix("_") + ("." + rest if rest else ""))
    return functional is not None and (functional in registry.table)
