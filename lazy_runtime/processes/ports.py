"""TCP ports that are in use, or that somebody else might take."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed

from . import process_exit

_dist: Any = torch.distributed

#: Seconds for which a rank waits for a port that another process has, as one that is just ending.
PATIENCE_S = 30.0

_INTERVAL_S = 0.2


@contextmanager
def reserved() -> Iterator[int]:
    """A free port that the system gives to nobody else meanwhile, and on which gRPC can listen.

    Who chooses a free port and lets go of it until gRPC listens there risks two things: jax's coordinator ends the
    process by a segmentation fault where the port has been taken, and two of gRPC's servers share one port without a
    word, so that two jobs would get each other's ranks. gRPC listens with SO_REUSEPORT, which is what lets it in here.
    """
    both = socket.has_dualstack_ipv6()
    with socket.socket(socket.AF_INET6 if both else socket.AF_INET) as found:
        if both:
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        found.bind(("", 0))  # nobody is connected to it, since it does not listen
        yield found.getsockname()[1]


def listens(host: str, port: int, goes_on: Callable[[], bool]) -> bool:
    """Waits until somebody listens.

    Args:
        goes_on: whether somebody is about to.

    Returns:
        whether somebody does.
    """
    while goes_on():
        try:
            socket.create_connection((host, port), timeout=1).close()
        except OSError:
            time.sleep(0.01)
        else:
            return True
    return False


def retried(listen: Callable[[], Any], variable: str) -> Any:
    """What a function returns that listens on a port; called again while somebody else has the port.

    Args:
        variable: the environment variable that says which it is.

    Raises:
        RuntimeError: somebody has it all the time.
    """
    until = time.monotonic() + PATIENCE_S
    has_said = False
    while True:
        try:
            return listen()
        except _dist.DistNetworkError as error:
            if errno.errorcode[errno.EADDRINUSE] not in str(error):
                raise
            port = os.environ[variable]
            if time.monotonic() > until:
                raise RuntimeError(
                    f"the port {port} ({variable}) is in use on this host, and has been for {PATIENCE_S:.0f} s: end "
                    "the process that has it, or start all ranks with another port"
                ) from error
        if not has_said:
            process_exit.say(f"the port {port} ({variable}) is in use: trying again for {PATIENCE_S:.0f} s")
            has_said = True
        time.sleep(_INTERVAL_S)
