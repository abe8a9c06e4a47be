"""torch's DataLoader with forked workers beside xla."""

from __future__ import annotations

import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks")


def test_workers_are_forked_without_a_warning(fresh_process):
    printed = fresh_process("""
        import os
        import threading
        import warnings
        import torch
        from lazy_runtime.torch_xla.distributed.parallel_loader import MpDeviceLoader

        class Squares(torch.utils.data.Dataset):
            def __len__(self):
                return 24
            def __getitem__(self, i):
                return torch.full((2,), float(i * i)), i

        x = torch.ones(300, 300, device="xla")
        x = x @ x  # pending, and then running, while workers are forked
        loader = torch.utils.data.DataLoader(Squares(), batch_size=4, num_workers=2)
        print(sum(batch.sum().item() for batch, _ in loader))
        device_loader = MpDeviceLoader(loader, "xla")
        for _ in range(3):
            total = 0
            for batch, numbers in device_loader:
                assert batch.device.type == numbers.device.type == "xla"
                total = total + batch.sum()
                x = x * 0.5
        print(total.item(), x.sum().isfinite().item())
        for batch in device_loader:
            break
        del batch
        ours = [each for each in threading.enumerate() if each.name.startswith("xla")]  # others, torch's, feed workers
        print(len(ours))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if os.fork() == 0:  # not torch's: jax says what it has to
                os._exit(0)
            os.wait()
        print(len([each for each in caught if "os.fork() was called" in str(each.message)]))
    """)
    total = 2 * sum(i * i for i in range(24))
    assert printed.split() == [f"{total:.1f}", f"{total:.1f}", "True", "0", "1"]


CHILDREN = """
    import os, sys, warnings
    import torch
    import lazy_runtime

    warnings.filterwarnings("ignore", r"os\\\\.fork\\\\(\\\\) was called")
    x = torch.rand(2, 3, device="xla")
    y = x + 1  # pending
    on_host = torch.compile(lambda a: a.sin() * 2, backend="openxla")
    on_xla = torch.compile(lambda a: a.cos() * 2, backend="openxla")
    host = torch.rand(3)
    on_host(host), on_xla(x).cpu()
    known, fresh = host, torch.rand(4)
    refused = {
        "read": lambda: x.cpu(), "read of what is pending": lambda: y.tolist(), "write": lambda: x.add_(1),
        "record": lambda: x * 2, "factory": lambda: torch.ones(3, device="xla"), "move": lambda: host.to("xla"),
        "module": lambda: torch.nn.Linear(2, 2).to("xla"), "sync": lazy_runtime.sync, "print": lambda: repr(x),
        "compiled": lambda: on_xla(x), "compiled on the CPU": lambda: on_host(known),
        "compiled anew on the CPU": lambda: on_host(fresh),
    }

    def train():
        layer = torch.nn.Linear(300, 300)
        layer(torch.rand(200, 300)).square().sum().backward()
        return layer.weight.grad.isfinite().all().item()

    for name, function in [*refused.items(), ("train", train)]:
        child = os.fork()
        if child == 0:
            torch.manual_seed(0)
            try:
                print(name, function(), flush=True)
            except RuntimeError as error:
                found = "Cannot re-initialize xla in a forked subprocess" in str(error)  # Dynamo may wrap it
                print(name, "|", "told" if found else repr(error), flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    print("parent", (y - x).sum().item(), on_host(fresh).shape)
"""


def test_a_child_that_uses_xla_is_told(fresh_process):
    printed = fresh_process(CHILDREN).splitlines()
    assert printed[-2:] == ["train True", "parent 6.0 torch.Size([4])"]
    assert len(printed) == 14
    assert {line.split("|")[1] for line in printed[:-2]} == {" told"}


def test_a_worker_that_uses_xla_is_told(fresh_process):
    printed = fresh_process("""
        import torch

        class Rows(torch.utils.data.Dataset):
            def __init__(self):
                self.rows = torch.rand(8, 2, device="xla")
            def __len__(self):
                return 8
            def __getitem__(self, i):
                return self.rows[i]

        try:
            next(iter(torch.utils.data.DataLoader(Rows(), batch_size=2, num_workers=1)))
        except RuntimeError as error:
            print("multiprocessing_context='spawn'" in str(error))
    """)
    assert printed == "True\n"
