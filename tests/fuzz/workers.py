"""Processes that run programs. One that dies takes nothing with it: the program that killed it is known."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from .difference import Difference

TIMEOUT = 300.0  # seconds that one program may take
RESET = 50  # programs until Dynamo's caches are emptied
#: Bytes of memory that a process may hold: executables, and what torch and jax remember of each, pile up.
MEMORY = 2 << 30

# Most of a program's time goes to LLVM, whose optimizations are not what is tested here. XLA's own passes (fusion, what
# is updated in place, what is copied) stay as they are.
QUICK = "--xla_backend_optimization_level=0"


class Worker:
    """One process, replaced when it has died or grown too large.

    Args:
        fuzzer: the package of this folder whose programs it runs.
        flags: XLA_FLAGS for it.
    """

    def __init__(self, fuzzer: str = "views", flags: str = QUICK):
        self._fuzzer = fuzzer
        self._flags = flags
        self._process: Any = None

    def check(self, program: Any, roads: Sequence[str]) -> Difference | None:
        """What differs; the end of the process, or more than `TIMEOUT`, is a difference too."""
        return self._ask("check", program, tuple(roads))

    def generate(self, seed: int, count: int) -> list[Any] | Difference:
        """Programs, or what went wrong: they are run on the CPU while they grow."""
        return self._ask("generate", seed, count)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._connection.close()
            self._process = None

    def _ask(self, *request: Any) -> Any:
        if self._process is None:
            self._start()
        self._connection.send(request)
        if not self._connection.poll(TIMEOUT):
            self.close()
            return Difference("process", "timeout", f"no answer in {TIMEOUT:.0f} seconds")
        try:
            answer, memory = self._connection.recv()
        except (EOFError, ConnectionResetError):
            self._process.join()
            status = self._process.exitcode
            self.close()
            return Difference("process", f"exit {status}", f"the process ended with status {status}")
        if memory > MEMORY:
            self.close()
        return answer

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._fuzzer, self._flags), daemon=True)
        self._process.start()
        theirs.close()


def _serve(connection: Connection, fuzzer: str, flags: str) -> None:
    os.environ["XLA_PERSISTENT_CACHE_PATH"] = "0"  # nobody will run these programs again
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()  # read when xla is first used
    import importlib
    import logging
    import warnings

    import torch

    package = importlib.import_module(f"{__package__}.{fuzzer}")
    torch._logging.set_logs(dynamo=logging.ERROR)
    warnings.simplefilter("ignore")  # autograd's, each time that a compiled function's backward pass raises
    torch.set_num_threads(1)
    for count in iter(int, 1):
        try:
            name, *arguments = connection.recv()
        except EOFError:
            return
        try:
            answer = getattr(package, name)(*arguments)
        except Exception as error:  # of the fuzzer itself
            answer = Difference("process", f"{type(error).__name__}: {error}", traceback.format_exc())
        if count % RESET == 0:
            torch._dynamo.reset()
        connection.send((answer, _memory()))


def _memory() -> int:
    """Bytes that this process holds."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
