"""Processes that serve as ranks, kept from test to test: to start one takes seconds."""

from __future__ import annotations

import io
import multiprocessing
import queue
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch

from lazy_runtime.torch_xla.distributed import xla_multiprocessing as xmp

PATIENCE_S = 100

#: How ranks are started where nothing depends on it: forked from a process that has imported everything, which takes
#: seconds.
QUICKLY = "forkserver"
multiprocessing.set_forkserver_preload(
    [
        "pytest",
        "lazy_runtime.torch_xla.distributed.xla_backend",
        "lazy_runtime.torch_xla.experimental.distributed_checkpoint",
    ]
)


class Ranks:
    """So many ranks of one job, which call what they are told to, all of them."""

    def __init__(self, count: int):
        context = multiprocessing.get_context(QUICKLY)
        self.count = count
        self._calls = [context.Queue() for _ in range(count)]
        self._results = context.Queue()
        self._processes = xmp.spawn(_serve, (self._calls, self._results), count, join=False, start_method=QUICKLY)

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What `function(*arguments)`, a module's own, gives in each rank; nothing on xla."""
        for calls in self._calls:
            calls.put((function, arguments))
        found: dict[int, Any] = {}
        for _ in range(self.count):
            try:
                rank, result, error = self._results.get(timeout=PATIENCE_S)
            except queue.Empty:
                self.close()
                pytest.fail(f"{function.__name__}: of {self.count} ranks only {sorted(found)} have answered")
            if error is not None:
                self.close()
                pytest.fail(f"rank {rank} in {function.__name__}:\n{error}")
            found[rank] = torch.load(io.BytesIO(result), weights_only=False)
        return [found[rank] for rank in range(self.count)]

    @property
    def is_closed(self) -> bool:
        """It has served its time, or failed."""
        return self._processes is None

    def close(self) -> None:
        """Ends the processes."""
        if self._processes is not None:
            for process in self._processes.processes:
                process.kill()
                process.join()
            self._processes = None


def _serve(index: int, calls: list[Any], results: Any) -> None:
    while True:
        function, arguments = calls[index].get()
        try:
            stream = io.BytesIO()
            torch.save(function(*arguments), stream)
            results.put((index, stream.getvalue(), None))
        except BaseException:
            results.put((index, None, traceback.format_exc()))
