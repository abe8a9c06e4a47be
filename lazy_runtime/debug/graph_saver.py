"""Graphs in a file: `XLA_SAVE_TENSORS_FILE`, as PyTorch/XLA writes it."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..common import environment, notices, source_locations
from ..compilation import lower
from ..processes import process_job
from . import reports

if TYPE_CHECKING:
    import torch

    from ..compilation.linearization import Linearized

_lock = threading.Lock()
_saved: Counter[tuple[int, str]] = Counter()  # (thread, name) → how many graphs `save_tensors_graph` has written


def is_on() -> bool:
    """Whether each graph that is executed is to be saved."""
    return environment.value("XLA_SAVE_TENSORS_FILE") is not None


def save(numbered: Linearized) -> None:
    """Appends a graph that is about to be executed, with the user's stack; of several ranks each to a file of its own,
    `NAME.RANK`.
    """
    from . import graphs

    text = graphs.render(numbered, environment.value("XLA_SAVE_TENSORS_FMT"))
    frames = "".join(f"  {reports.described(line)}\n" for line in source_locations.stack())
    here = process_job.process_place()
    _append(
        environment.value("XLA_SAVE_TENSORS_FILE") + (f".{here.rank}" if here.size > 1 else ""),
        f"[ScheduleSyncTensorsGraph]\nGraph Name: {lower.graph_name()}\nTensorsGraphInfo:\n{frames}\n"
        f"## BEGIN_GRAPH\n{text.rstrip()}\n\nGraph Hash: {reports.graph_hash(numbered.graph)}\n\n## END_GRAPH\n\n",
    )


def save_tensors_graph(save_dir: str | os.PathLike[str], name: str, tensors: Sequence[torch.Tensor]) -> None:
    """Writes the graph that these tensors wait for to a file of its own, in the form that `SAVE_GRAPH_FMT` names.

    Args:
        save_dir: the directory, which must be there.
        name: the file is called `NAME-THREAD-NUMBER.FORM`; the number counts the thread's graphs of this name from 0.
        tensors: on one xla device.
    """
    from . import graphs

    form = environment.value("SAVE_GRAPH_FMT")
    text = graphs.render(graphs.of_tensors(tensors), form)
    thread = threading.get_ident()
    with _lock:
        number = _saved[thread, name]
        _saved[thread, name] += 1
    with open(os.path.join(save_dir, f"{name}-{thread}-{number}.{form}"), "w", encoding="utf-8") as file:
        file.write(text)


def _append(path: str, text: str) -> None:
    with _lock:
        notices.append(path, text, "XLA_SAVE_TENSORS_FILE")
