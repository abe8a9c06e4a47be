"""A launcher that is killed: its ranks end too, whatever they do."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import torch

from lazy_runtime.processes import process_exit
from lazy_runtime.torch_xla.core import xla_model as xm

#: Seconds within which ranks start, and those within which they end.
STARTING_S, ENDING_S = 200, process_exit.GRACE_S + 25


def ready(port: int) -> socket.socket:
    """A connection to the test, which breaks when this process ends."""
    print("what somebody is to read who has gone", flush=False)
    return socket.create_connection(("localhost", port))


def is_read(connection: socket.socket) -> bool:
    """Whether the test is still there."""
    try:
        return connection.recv(1, socket.MSG_DONTWAIT) != b""
    except BlockingIOError:
        return True


def all_reduce() -> None:
    xm.all_reduce(xm.REDUCE_SUM, torch.ones(2, device="xla")).cpu()  # type: ignore[union-attr]


def collective_and_loop(rank: int, port: int) -> None:
    """The first rank waits in a collective, the second computes and does not let anybody interrupt it."""
    all_reduce()
    connection = ready(port)
    if rank == 0:
        all_reduce()
    while is_read(connection):
        try:
            sum(range(1000))
        except KeyboardInterrupt:
            continue


def joining(rank: int, port: int) -> None:
    """The first rank waits for the second, which has not used xla yet."""
    connection = ready(port)
    if rank == 0:
        all_reduce()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while is_read(connection):
        time.sleep(0.1)


def of_torchrun(index: int, port: int) -> None:
    """What `launch` calls in a process of torchrun's."""
    connection = ready(port)
    while is_read(connection):
        time.sleep(0.1)


_SPAWN = """
import sys
sys.path.insert(0, {folder!r})
from tests.lazy_runtime.processes import test_process_exit
from lazy_runtime.torch_xla.distributed import xla_multiprocessing as xmp
if __name__ == "__main__":
    xmp.spawn(test_process_exit.{function}, ({port},), nprocs=2)
"""

_TORCHRUN = """
import os, subprocess, sys
if __name__ == "__main__" and "TORCHELASTIC_RUN_ID" not in os.environ:
    subprocess.run([sys.executable, __file__], env={{**os.environ, "TORCHELASTIC_RUN_ID": "1"}})
else:
    sys.path.insert(0, {folder!r})
    import lazy_runtime
    from tests.lazy_runtime.processes import test_process_exit
    lazy_runtime.launch(test_process_exit.of_torchrun, ({port},))
"""


def launcher(path: Path, text: str) -> subprocess.Popen[bytes]:
    path.write_text(text)
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}
    return subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, env=environment)


def test_ranks_end_with_their_launcher(tmp_path):
    with contextlib.ExitStack() as opened:
        server = opened.enter_context(socket.create_server(("localhost", 0)))
        server.settimeout(STARTING_S)
        values = {"folder": str(Path(__file__).parents[3]), "port": server.getsockname()[1]}
        launchers = [
            launcher(tmp_path / "collective.py", _SPAWN.format(function="collective_and_loop", **values)),
            launcher(tmp_path / "joining.py", _SPAWN.format(function="joining", **values)),
            launcher(tmp_path / "torchrun.py", _TORCHRUN.format(**values)),
        ]
        connections = [opened.enter_context(server.accept()[0]) for _ in range(5)]
        time.sleep(0.5)  # for the ranks to be where they wait
        for each in launchers:
            assert each.stdout is not None
            each.stdout.close()
            each.kill()
            each.wait()
        until = time.monotonic() + ENDING_S
        for connection in connections:
            connection.settimeout(max(until - time.monotonic(), 0.001))
            assert connection.recv(1) == b""
