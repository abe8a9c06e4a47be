"""Graphs in a file: `XLA_SAVE_TENSORS_FILE`, as PyTorch/XLA writes it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .. import environment, lines
from . import reports

if TYPE_CHECKING:
    import torch

    from ..numbering import Numbered

_lock = threading.Lock()


def is_on() -> bool:
    """Whether each graph that is executed is to be saved."""
    return environment.value("XLA_SAVE_TENSORS_FILE") is not None


def save(numbered: Numbered) -> None:
    """Appends a graph that is about to be executed, with the user's stack."""
    from . import graphs

    text = graphs.render(numbered, environment.value("XLA_SAVE_TENSORS_FMT"))
    frames = "".join(f"  {reports.described(line)}\n" for line in lines.stack())
    _append(
        environment.value("XLA_SAVE_TENSORS_FILE"),
        f"[ScheduleSyncTensorsGraph]\nTensorsGraphInfo:\n{frames}\n## BEGIN_GRAPH\n{text.rstrip()}\n\n"
        f"Graph Hash: {reports.graph_hash(numbered.graph)}\n\n## END_GRAPH\n\n",
    )


def save_tensors_graph(path: str, name: str, tensors: Sequence[torch.Tensor]) -> None:
    """Appends the graph that these tensors wait for, under a name.

    Args:
        path: of the file.
        name: stands above the graph.
        tensors: on one xla device.
    """
    from . import graphs

    text = graphs.render(graphs.of_tensors(tensors), environment.value("XLA_SAVE_TENSORS_FMT"))
    _append(path, f"[{name}]\n\n## BEGIN_GRAPH\n{text.rstrip()}\n\n## END_GRAPH\n\n")


def _append(path: str, text: str) -> None:
    with _lock, open(path, "a", encoding="utf-8") as file:
        file.write(text)
