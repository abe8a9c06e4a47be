"""What is known of a program before it is traced."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from ..cache import disk_cache
from ..ir.flat import Flat
from ..ir.graph import Graph
from . import donation, fusion_emitters, kernel_thread


class CompilePlan:
    """How one graph becomes an executable. The compiler, the lowering and the executable read it; each part of it is
    computed once, when it is first asked for.

    Attributes:
        graph: what is compiled.
        keep_layout: numbers of the results that may be left channels last, None for all; the others have torch's order.
        scopes: for each call of the graph, what its instructions are named after in HLO's metadata; empty for nothing
            (`XLA_HLO_DEBUG`).
        is_eager: it is a single operator of eager mode, whose times have metrics of their own.
    """

    def __init__(
        self,
        graph: Graph,
        keep_layout: frozenset[int] | None = frozenset(),
        scopes: Sequence[str] = (),
        is_eager: bool = False,
    ) -> None:
        self.graph = graph
        self.keep_layout = keep_layout
        self.scopes = scopes
        self.is_eager = is_eager

    def of(self, graph: Graph) -> CompilePlan:
        """The plan of another graph with the same calls."""
        return CompilePlan(graph, self.keep_layout, self.scopes, self.is_eager)

    @functools.cached_property
    def flat(self) -> Flat:
        """The graph as one list of operators."""
        return Flat(self.graph)

    @functools.cached_property
    def origins(self) -> dict[int, int]:
        """Value → the leaf that it seems to be an update of (`donation.origins`)."""
        return donation.origins(self.graph, self.flat)

    @functools.cached_property
    def updates(self) -> dict[int, int]:
        """Donated leaf → the number of the output that updates it (`donation.updates`)."""
        return donation.updates(self.graph, self.flat, self.origins)

    @functools.cached_property
    def order(self) -> tuple[int, ...] | None:
        """The order of the program's results, as numbers of the graph's outputs; None for the graph's."""
        is_alone = not self.graph.is_collective and self.graph.device.grid is None and self.graph.results is None
        return donation.order(self.graph, self.updates) if is_alone and self.graph.donated else None

    @functools.cached_property
    def is_of_kernels(self) -> bool:
        """Whether the kernels that it calls run in a thread of their own (`kernel_thread.is_of_kernels`)."""
        return kernel_thread.is_of_kernels(self.graph)

    @functools.cached_property
    def has_other_kernels(self) -> bool:
        """Whether kernels run between its products of matrices (`kernel_thread.has_other_kernels`)."""
        return kernel_thread.has_other_kernels(self.graph)

    @functools.cached_property
    def place(self) -> disk_cache.Place | None:
        """Where the executable is on disk, or would be; None if it is not kept there."""
        if self.graph.is_collective or self.graph.device.spans_processes:
            return None
        return disk_cache.find(self.graph, self.keep_layout, fusion_emitters.known(self.graph.device.platform))
