"""Processes that are started and ended: `spawn`, `launch`, `torchrun`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest
import torch
from torch.multiprocessing import ProcessExitedException, ProcessRaisedException  # pyright: ignore

import lazy_runtime
from lazy_runtime.platform import discovery
from lazy_runtime.torch_xla import runtime as xr
from lazy_runtime.torch_xla.core import xla_model as xm
from lazy_runtime.torch_xla.distributed import xla_multiprocessing as xmp
from tests.lazy_runtime.ranks import QUICKLY

ROOT = str(Path(__file__).parents[4])

#: Within which a job has to end after one of its ranks has.
PATIENCE_S = 60


def places(index: int, folder: Path, wrapped: xmp.MpModelWrapper | None = None) -> None:
    if wrapped is not None:
        moved = wrapped.to(lazy_runtime.device())
        assert moved.weight.device == lazy_runtime.device()
        assert moved.weight.tolist() == [[1.5, 2.5]]
    total = xm.all_reduce(xm.REDUCE_SUM, torch.full((2,), float(index + 1), device=lazy_runtime.device()))
    seen = (xr.world_size(), xr.global_ordinal(), xr.local_ordinal(), xr.host_index(), xr.global_device_count())
    master = xm.is_master_ordinal(), xm.is_master_ordinal(local=False)
    serial = xmp.MpSerialExecutor().run(lambda: index)
    gpu = jax.config.values["jax_cuda_visible_devices"]
    (folder / str(index)).write_text(str((seen, master, total.tolist(), serial, gpu)))  # type: ignore[union-attr]


def what_they_wrote(folder: Path) -> list[str]:
    return [(folder / name).read_text() for name in sorted(os.listdir(folder))]


EXPECTED = [
    "((2, 0, 0, 0, 2), (True, True), [3.0, 3.0], 0, '0')",
    "((2, 1, 1, 0, 2), (False, False), [3.0, 3.0], 1, '1')",
]


def test_spawn_by_the_number_of_devices(tmp_path, monkeypatch):
    monkeypatch.setenv("CPU_NUM_DEVICES", "2")
    before = dict(os.environ)
    model = torch.nn.Linear(2, 1)
    model.weight.data.copy_(torch.tensor([[1.5, 2.5]]))
    assert xmp.spawn(places, (tmp_path, xmp.MpModelWrapper(model))) is None
    assert model.weight.device.type == "cpu"
    assert what_they_wrote(tmp_path) == EXPECTED
    assert dict(os.environ) == before


def test_launch_under_torchrun(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(f"""
import sys, pathlib
sys.path.insert(0, {ROOT!r})
import lazy_runtime
from tests.lazy_runtime.torch_xla.distributed.test_xla_multiprocessing import places
if __name__ == "__main__":
    lazy_runtime.launch(places, (pathlib.Path({str(tmp_path / "out")!r}),))
""")
    (tmp_path / "out").mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    assert what_they_wrote(tmp_path / "out") == EXPECTED


def test_one_process_is_this_one(tmp_path):
    lazy_runtime.launch(lambda index: (tmp_path / str(index)).touch(), debug_single_process=True)
    xmp.spawn(lambda index, name: (tmp_path / name).touch(), ("other",), nprocs=1)
    assert sorted(os.listdir(tmp_path)) == ["0", "other"]


def raising(index: int) -> None:
    xm.all_reduce(xm.REDUCE_SUM, torch.ones(2, device="xla")).cpu()  # type: ignore[union-attr]
    if index == 1:
        raise KeyError("the second rank's reason")
    xm.all_reduce(xm.REDUCE_SUM, torch.ones(2, device="xla")).cpu()  # type: ignore[union-attr]  the other never comes


def killed(index: int) -> None:
    xm.all_reduce(xm.REDUCE_SUM, torch.ones(2, device="xla")).cpu()  # type: ignore[union-attr]
    if index == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    xm.all_reduce(xm.REDUCE_SUM, torch.ones(2, device="xla")).cpu()  # type: ignore[union-attr]


def never_there(index: int) -> None:
    os.environ["XLA_JOB_TIMEOUT"] = "3"
    if index == 0:
        xm.rendezvous("the meeting")
    time.sleep(PATIENCE_S)


def differing(index: int) -> None:
    x = torch.ones(4 + index, dtype=(torch.float32, torch.int32)[index], device="xla")
    xm.all_reduce(xm.REDUCE_SUM, x).cpu()  # type: ignore[union-attr]


def absent(index: int) -> None:
    os.environ["XLA_JOB_TIMEOUT"] = "3"
    xm.all_reduce(xm.REDUCE_SUM, torch.ones(2, device="xla")).cpu()  # type: ignore[union-attr]
    if index == 0:
        time.sleep(PATIENCE_S)
    xm.all_reduce(xm.REDUCE_SUM, torch.ones(2, device="xla")).cpu()  # type: ignore[union-attr]


_HERE = os.path.basename(__file__)


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (raising, ProcessRaisedException, "(?s)Process 1 terminated.*KeyError: .the second rank's reason"),
        (killed, ProcessExitedException, "process 0 terminated with signal SIGKILL"),
        (never_there, ProcessRaisedException, r"rank 0 waited 3 s .* at 'the meeting' for the ranks \[1\]"),
        (
            differing,
            ProcessRaisedException,
            r"(?s)rank 0: all_reduce\(tensors=\[float32\[4\]\].* at \S*"
            + _HERE
            + r":\d+.*rank 1: all_reduce\(tensors=\[int32\[5\]\].* at ",
        ),
        (
            absent,
            ProcessExitedException,
            rf"(?s)rank 1 has waited 3 s.*rank 0: is at \S*{_HERE}:\d+, after 1 .*rank 1: waits in all_reduce\(",
        ),
    ],
)
def test_a_rank_that_fails_ends_the_job(function, error, message):
    context = xmp.spawn(function, nprocs=2, join=False, start_method=QUICKLY)
    began = time.monotonic()
    with pytest.raises(error, match=message):
        xmp.wait(context)
    assert time.monotonic() - began < PATIENCE_S
    assert not any(process.is_alive() for process in context.processes)


def test_a_rank_that_raises_under_torchrun(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(f"""
import sys
sys.path.insert(0, {ROOT!r})
import lazy_runtime
from tests.lazy_runtime.torch_xla.distributed.test_xla_multiprocessing import raising
if __name__ == "__main__":
    lazy_runtime.launch(raising)
""")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode != 0
    assert 'KeyError: "the second rank\'s reason"' in done.stderr


def test_wrong_arguments():
    lazy_runtime.device()
    with pytest.raises(ValueError, match="nprocs: expected 1 or more, got 0"):
        xmp.spawn(places, nprocs=0)
    with pytest.raises(RuntimeError, match='start_method="fork" after xla was used'):
        xmp.spawn(places, nprocs=2, start_method="fork")


def test_no_process_for_each_tpu_chip(monkeypatch):
    monkeypatch.setattr(discovery, "kind_and_count", lambda: ("TPU", 4))
    with pytest.raises(NotImplementedError, match="4 TPU chips: one process drives them all"):
        xmp.spawn(places)


@pytest.mark.parametrize(
    ("variables", "message"),
    [({"RANK": "two"}, "the environment variable RANK is 'two'"), ({"RANK": "2"}, "RANK=2 and WORLD_SIZE=2")],
)
def test_an_environment_that_makes_no_sense(forked_process, variables, message):
    code = """
        import lazy_runtime
        try:
            lazy_runtime.device()
        except ValueError as error:
            print(error)
    """
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    whole = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port, **variables}
    assert message in forked_process(code, **whole)
