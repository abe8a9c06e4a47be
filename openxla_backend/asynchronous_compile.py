"""`options={"compile_in_background": True}`: torch's own kernels run a graph while XLA compiles it."""

from __future__ import annotations

import concurrent.futures
import copy
import functools
from collections.abc import Callable
from typing import Any

import torch

from .compiled import CompiledGraph
from .inference.constant_hoisting import HoistedParameters

#: Prepare(graph, arguments) has a graph compiled, which was made for these arguments.
Prepare = Callable[[CompiledGraph | HoistedParameters, Any], None]


def at_once(graph: CompiledGraph | HoistedParameters, arguments: Any) -> None:
    """`Prepare`, in the calling thread."""
    graph.prepare(arguments)


class Jobs:
    """Graphs that are being compiled, one after the other."""

    def __init__(self) -> None:
        self.pending: list[concurrent.futures.Future[Any]] = []

    def __call__(self, graph: CompiledGraph | HoistedParameters, arguments: Any) -> None:
        """`Prepare`, in another thread."""
        self.pending.append(_pool().submit(at_once, graph, arguments))

    def are_done(self) -> bool:
        """Whether all is compiled.

        Raises:
            Exception: what a compilation has raised.
        """
        if not all(job.done() for job in self.pending):
            return False
        for job in self.pending:
            job.result()
        self.pending.clear()
        return True


def copy_of(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A copy of Dynamo's graph and the graphs in it, with the same parameters and buffers."""
    return copy.deepcopy(gm, {id(tensor): tensor for tensor in (*gm.parameters(), *gm.buffers())})


class Meanwhile:
    """What Dynamo calls: the compiled graph, or until it is there the graph as it was traced.

    Args:
        traced: Dynamo's graph, on torch's operators, with which autograd works as ever.
        compiled: AOTAutograd's wrapper of the compiled graphs.
    """

    def __init__(self, traced: torch.fx.GraphModule, compiled: Callable[..., Any], jobs: Jobs):
        self._traced = traced
        self._compiled = compiled
        self._jobs: Jobs | None = jobs

    def __call__(self, *arguments: Any) -> Any:
        if self._jobs is not None:
            if not self._jobs.are_done():
                return self._traced(*arguments)
            self._jobs = None
        return self._compiled(*arguments)


@functools.cache
def _pool() -> concurrent.futures.Executor:
    """One thread: XLA's compiler has some of its own. At the process's end it is waited for."""
    return concurrent.futures.ThreadPoolExecutor(1, "openxla compiler")
