"""Training by threads: `DataParallel` over the devices of one process, which each test starts with four."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import torch

from lazy_runtime.torch_xla.distributed.data_parallel import DataParallel

PRELUDE = """
import threading

import pytest
import torch
from torch import nn

import lazy_runtime
from lazy_runtime.common import metrics
from lazy_runtime.torch_xla import runtime as xr
from lazy_runtime.torch_xla.core import functions
from lazy_runtime.torch_xla.core import xla_model as xm
from lazy_runtime.torch_xla.distributed import data_parallel as dp
from lazy_runtime.tensor.xla_tensor import unwrap

torch.manual_seed(0)
"""


def run(code: str, devices: int = 4, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PRELUDE + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "CPU_NUM_DEVICES": str(devices), **environment},
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_a_step_is_one_execution_and_learns_what_one_device_does():
    run(
        """
        class Net(nn.Sequential):
            def __init__(self):
                super().__init__(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))

        images, classes = torch.randn(6, 16, 6), torch.randint(0, 3, (6, 16))
        # four devices see the quarters of each batch
        parts = [(x, y) for batch in range(6) for x, y in zip(images[batch].chunk(4), classes[batch].chunk(4))]

        def train(model, loader, device, context):
            optimizer = context.getattr_or("optimizer", lambda: torch.optim.AdamW(model.parameters(), lr=0.05))
            seen = []
            for x, y in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                xm.optimizer_step(optimizer)
                seen.append((metrics.value("ExecuteComputation"), metrics.value("UncachedCompile")))
                xm.rendezvous("counted")
            assert (xr.world_size(), xr.global_ordinal()) == (4, device.index)
            assert xm.xla_device() == device
            return seen

        network = Net()
        plain = Net()
        plain.load_state_dict(network.state_dict())
        parallel = dp.DataParallel(network)
        assert parallel.devices == [f"xla:{n}" for n in range(4)]
        before = None
        seen = parallel(train, parts)
        assert [len(each) for each in seen] == [6] * 4
        executions, compiles = zip(*(max(step) for step in zip(*seen)))
        assert executions[-1] - executions[2] == 3 * 4  # one a step and rank
        assert compiles[-1] == compiles[2] > compiles[0]
        optimizer = torch.optim.AdamW(plain.parameters(), lr=0.05)
        for x, y in zip(images, classes):
            optimizer.zero_grad()
            nn.functional.cross_entropy(plain(x), y).backward()
            optimizer.step()
        for model in parallel.models:
            for mine, expected in zip(model.parameters(), plain.parameters()):
                torch.testing.assert_close(mine.cpu(), expected, rtol=1e-4, atol=1e-5)
        assert xr.world_size() == 1
        """
    )


def test_collectives_gradients_and_places():
    run(
        """
        def loop(model, loader, device, context):
            rank = xr.global_ordinal()
            x = torch.full((2,), float(rank + 1), device=device, requires_grad=True)
            assert xm.all_reduce("sum", x.detach()).tolist() == [10.0, 10.0]
            assert xm.all_gather(x.detach()).tolist() == [1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0]
            assert xm.all_reduce("max", x.detach(), groups=[[0, 1], [2, 3]]).tolist() == [2.0 + 2 * (rank > 1)] * 2
            weighted = functions.all_reduce("sum", x) * (rank + 1)
            weighted.sum().backward()  # autograd's threads know which rank they work for
            assert x.grad.tolist() == [10.0, 10.0]
            made = torch.zeros(3, device=device)
            lazy_runtime.sync()
            assert {d.id for d in unwrap(made).handle.value.array.devices()} == {device.index}
            assert xm.rendezvous("here", str(rank).encode()) == [b"0", b"1", b"2", b"3"]
            assert xm.mesh_reduce("sum", rank, sum) == 6
            return torch.zeros(1, device="xla").device.index

        assert dp.DataParallel(nn.Linear(1, 1))(loop, []) == [0, 1, 2, 3]
        """
    )


def test_all_get_the_same_number_of_batches():
    run(
        """
        counts = dp.DataParallel(nn.Linear(1, 1))(lambda model, loader, *_: len(list(loader)), list(torch.ones(11)))
        assert counts == [2, 2, 2, 2]
        caught = []
        threading.excepthook = lambda arguments: caught.append(arguments)
        with pytest.warns(RuntimeWarning, match="has given 3 batches for 4 devices"):
            counts = dp.DataParallel(nn.Linear(1, 1))(lambda model, loader, *_: len(list(loader)), list(torch.ones(3)))
        assert counts == [0, 0, 0, 0]
        assert not caught
        """
    )


def test_some_devices():
    run(
        """
        parallel = dp.DataParallel(nn.Linear(1, 1), device_ids=["xla:3", "xla:1"])
        def loop(model, loader, device, context):
            return str(device), xm.all_reduce("sum", torch.ones(1, device=device)).item()

        assert parallel(loop, []) == [("xla:3", 2.0), ("xla:1", 2.0)]
        with pytest.raises(ValueError, match="different devices"):
            dp.DataParallel(nn.Linear(1, 1), device_ids=["xla:1", "xla:1"])
        """
    )


def test_a_thread_that_fails():
    run(
        """
        def loop(model, loader, device, context):
            if device.index == 2:
                raise KeyError("of one thread")
            xm.all_reduce("sum", torch.ones(1, device=device)).item()

        parallel = dp.DataParallel(nn.Linear(1, 1))
        for _ in range(2):
            with pytest.raises(KeyError, match="of one thread") as error:
                parallel(loop, [])
            assert getattr(error.value, "__notes__", ["xla:2"])[-1].endswith("xla:2")
        assert parallel(lambda *_: xr.global_ordinal(), []) == [0, 1, 2, 3]
        """
    )


def test_threads_that_do_different_things():
    run(
        """
        changes = {
            "have recorded different programs: aten::add": lambda x, first: x + 2 if first else x * 2,
            "have recorded different programs: aten::slice": lambda x, first: x[:, :1] if first else x[:, 1:],
            "have recorded different programs": lambda x, first: x[:1] if first else x,
        }
        for message, change in changes.items():

            def loop(model, loader, device, context):
                return xm.all_reduce("sum", change(torch.ones(2, 2, device=device), device.index == 0)).tolist()

            with pytest.raises(RuntimeError, match=message):
                dp.DataParallel(nn.Linear(1, 1))(loop, [])
        """
    )


def test_a_thread_that_does_not_come():
    run(
        """
        def loop(model, loader, device, context):
            if device.index:
                xm.rendezvous("everybody")

        with pytest.raises(RuntimeError, match="waited at 'everybody' for the other threads"):
            dp.DataParallel(nn.Linear(1, 1))(loop, [])
        """,
        devices=2,
        XLA_JOB_TIMEOUT="2",
    )


def test_no_device_at_all():
    model = torch.nn.Linear(2, 2)
    loader = [torch.ones(1, 2)]

    def loop(found, batches, device, context):
        assert found is model
        assert batches is loader
        return device, context.device

    parallel = DataParallel(model, device_ids=[])
    assert parallel(loop, loader) == [(torch.device("cpu"), torch.device("cpu"))]
    assert parallel.devices == ["cpu"]
