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
        from lazy_runtime.distributed.parallel_loader import MpDeviceLoader

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
