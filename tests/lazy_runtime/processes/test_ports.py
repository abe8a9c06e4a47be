"""Ports that are in use, or might be taken."""

from __future__ import annotations

import datetime
import errno
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed

from lazy_runtime.processes import ports, process_job

_dist: Any = torch.distributed


def listener(port: int = 0, **options: Any) -> socket.socket:
    return socket.create_server(("", port), **options)


def test_a_reserved_port_is_nobody_elses():
    with ports.reserved() as port, ports.reserved() as other:
        assert port != other
        with pytest.raises(OSError, match=os.strerror(errno.EADDRINUSE)):
            listener(port)
        with pytest.raises(OSError, match=os.strerror(errno.EADDRINUSE)):
            listener(port, family=socket.AF_INET6)
        assert not ports.listens("localhost", port, iter([True, False]).__next__)
        with listener(port, reuse_port=True) as grpc:  # which listens so
            assert ports.listens("localhost", port, lambda: True)
            grpc.accept()[0].close()
    with listener(port):
        pass


@pytest.fixture
def taken(monkeypatch) -> Iterator[socket.socket]:
    """A port that somebody listens on, and that is to be the first rank's."""
    variables = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "TORCHELASTIC_USE_AGENT_STORE": "False"}
    with listener() as found:
        for name, value in {**variables, "MASTER_PORT": str(found.getsockname()[1])}.items():
            monkeypatch.setenv(name, value)
        yield found


def test_a_port_in_use_is_tried_again(taken, capsys):
    found: list[bytes] = []

    def other_rank() -> None:
        port = taken.getsockname()[1]
        notes = _dist.TCPStore("localhost", port, 2, False, datetime.timedelta(seconds=60))
        found.append(_dist.PrefixStore("openxla", notes).get("note"))

    thread = threading.Thread(target=other_rank)
    thread.start()  # gets to the process that has the port
    threading.Timer(1, taken.close).start()
    notes = process_job.store.__wrapped__()
    notes.set("note", "here")
    thread.join()
    assert found == [b"here"]
    assert "(MASTER_PORT) is in use: trying again" in capsys.readouterr().err


def test_a_port_that_stays_in_use(taken, monkeypatch):
    monkeypatch.setattr(ports, "PATIENCE_S", 0.3)
    with pytest.raises(
        RuntimeError, match=rf"the port {taken.getsockname()[1]} \(MASTER_PORT\) is in use on this host"
    ):
        process_job.store.__wrapped__()
