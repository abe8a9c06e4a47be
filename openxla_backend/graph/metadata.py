"""AOTAutograd's notes on a graph: what its inputs and outputs are to each other."""

from __future__ import annotations

from typing import Any

from lazy_runtime.compat.tracing import OutputType, TracingContext


def current() -> Any:
    """The notes on the graph that is being compiled; None where there are none."""
    context = TracingContext.try_get()
    return context.fw_metadata if context is not None else None


def visible(notes: Any) -> int | None:
    """How many of a forward graph's outputs the user sees; before them are the tokens of operators that may raise."""
    return None if notes is None else notes.num_forward_returns + len(notes.tokens)


def aliases(notes: Any) -> frozenset[int]:
    """Numbers of a forward graph's outputs that AOTAutograd hands to the user as they are. Some of them are views of
    arguments that it takes for none (`detach`, one of several outputs), since the graph's own operators make a view.
    """
    if notes is None:
        return frozenset()
    first = len(notes.tokens) + notes.num_mutated_inp_runtime_indices
    return frozenset(first + number for number, info in enumerate(notes.output_info) if info.output_type in _HANDED_ON)


_HANDED_ON = (OutputType.non_alias, OutputType.unsafe_view_alias, OutputType.custom_function_view)
