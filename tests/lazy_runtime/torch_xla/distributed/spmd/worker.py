"""A process with four devices that xla:0 stands for, kept from test to test: to start one takes seconds."""

from __future__ import annotations

import multiprocessing
import os
import queue
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import pytest

PATIENCE_S = 200


class Worker:
    """Calls what it is told to, a function of a test's module, in a process of its own."""

    def __init__(self, **environment: str):
        context = multiprocessing.get_context("spawn")
        self._calls, self._results = context.Queue(), context.Queue()
        self._process = context.Process(target=_serve, args=(environment, self._calls, self._results), daemon=True)
        self._process.start()

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What `function(*arguments)` gives there; no tensors."""
        self._calls.put((function, arguments))
        try:
            result, error = self._results.get(timeout=PATIENCE_S)
        except queue.Empty:
            self.close()
            pytest.fail(f"{function.__name__} has not ended within {PATIENCE_S} s")
        if error is not None:
            pytest.fail(f"in the process of four devices:\n{error}")
        return result

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.join()


def _serve(environment: dict[str, str], calls: Any, results: Any) -> None:
    os.environ.update(environment)
    warnings.simplefilter("error")
    for message in (
        ".torch.jit.script_method. is deprecated",
        "The .grad attribute of a Tensor that is not a leaf",
        ".*should not be instantiated. Methods on autograd functions",
    ):
        warnings.filterwarnings("ignore", message)  # which Dynamo gives rise to
    import torch

    from lazy_runtime.torch_xla import runtime as xr

    xr.use_spmd()
    while True:
        function, arguments = calls.get()
        torch.manual_seed(0)
        try:
            results.put((function(*arguments), None))
        except BaseException:
            results.put((None, traceback.format_exc()))
