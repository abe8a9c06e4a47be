"""A process that holds programs and runs them when it is told: `python -m benchmarks.served`.

`remote.py` is the other end. Requests come as JSON lines on the standard input, each is answered by one line on the
standard output; the process ends with its input. This file needs torch alone, so that an interpreter of another
environment can run it; what a program needs besides is imported with it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any

import torch

from . import environment, models


class Programs:
    """The programs of one process, by the names that the other end gave them. Each public method is a request."""

    def __init__(self):
        self._programs: dict[str, Any] = {}

    def hello(self) -> dict[str, Any]:
        """What runs here: versions, and where the package lies if it is importable, for a check that it is the one
        that was meant.
        """
        spec = importlib.util.find_spec("lazy_runtime")
        return {
            "versions": environment.versions(),
            "package": None if spec is None or spec.origin is None else os.path.dirname(os.path.dirname(spec.origin)),
            "torch_xla": importlib.util.find_spec("torch_xla") is not None,
            "threads": torch.get_num_threads(),
        }

    def make(self, name: str, request: dict[str, Any], test: str, mode: str) -> None:
        """Makes a program of a model in a mode; `request` has the fields of `worker.Request`."""
        model = models.without_dropout(models.build(request["model"])).train(test != "inference")
        inputs = models.example(request["model"], request["batch_size"], request["image_size"])
        self._programs[name] = _program(request, test, mode, model, inputs)

    def run(self, name: str, times: float = 1.0, least_s: float = 0.0) -> dict[str, Any]:
        """One round, by this process's clock.

        Args:
            times: the round is made to last so many times as long, which plants a slowdown.
            least_s: if not 0, rounds are run in a row for so long, after one that is not timed, and the mean is given.
        """
        program, host_s, count = self._programs[name], [], 0
        if least_s:
            program.round()
            program.clear()
        start = time.perf_counter()
        while not count or time.perf_counter() - start < least_s:
            if count:
                program.clear()
            host_s += program.round()
            count += 1
        end = start + times * (time.perf_counter() - start)
        while times > 1 and time.perf_counter() < end:
            pass
        return {"seconds": (time.perf_counter() - start) / count, "host_s": host_s}

    def clear(self, name: str) -> None:
        """Forgets the last round's results."""
        self._programs[name].clear()

    def first_step_again(self, name: str) -> None:
        """Has a program of steps begin where it first began, and run one."""
        self._programs[name].first_step_again()

    def results(self, name: str, path: str) -> None:
        """Writes the last round's results into a file of torch's."""
        torch.save(self._programs[name].results(), path)


def _program(
    request: dict[str, Any], test: str, mode: str, model: torch.nn.Module, inputs: Sequence[torch.Tensor]
) -> Any:
    if mode.startswith("torch_xla"):
        from .torch_xla_program import Program

        return Program(model, inputs, test, dynamo=mode == "torch_xla", loop=request["loop"])
    from .modes import warm_up  # not above: it needs the package, which another environment lacks
    from .training_step import Step
    from .worker import Request

    warm_up([mode])
    if test == "step":
        warm_up([mode], Step)
    return Request(**request).program(test, mode, model, inputs)


def main() -> int:
    """Answers requests until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not stand between the answers
    programs = Programs()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"answer": getattr(programs, request.pop("do"))(**request)}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": environment.one_line(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
