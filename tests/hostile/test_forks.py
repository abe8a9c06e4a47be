"""Forks of a process in which xla runs: children that compute on the CPU end well, those that use xla are told."""

from __future__ import annotations

import pytest

FORKS = """
    import os, random, warnings
    import torch
    import lazy_runtime

    warnings.filterwarnings("ignore", r"os\\\\.fork\\\\(\\\\) was called")
    moment = random.Random(0)
    x = torch.rand(200, 200, device="xla")
    on_host = torch.compile(lambda a: a.sin() * 2, backend="openxla")
    on_host(torch.rand(3))
    total = torch.zeros(200, 200, device="xla")
    refused = [lambda: total.cpu(), lambda: total + 1, lambda: torch.ones(2).to("xla"), lazy_runtime.sync,
               lambda: on_host(torch.rand(3)), lambda: on_host(torch.rand(moment.randint(4, 9)))]

    def child():
        layer = torch.nn.Linear(30, 30)
        layer(torch.rand(20, 30)).sum().backward()
        if not layer.weight.grad.isfinite().all():
            return 1
        try:
            moment.choice(refused)()
        except RuntimeError as error:
            return 0 if "Cannot re-initialize xla in a forked subprocess" in str(error) else 2
        return 3

    for number in range({count}):
        total += x @ x * 0 + 1  # running, or pending, at the fork
        if moment.random() < 0.7:
            lazy_runtime.sync()
        pid = os.fork()
        if pid == 0:
            status = 4
            try:
                moment.seed(number)
                status = child()
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0, number
    print(total.unique().tolist())
"""


def test_some_forks(fresh_process):
    assert fresh_process(FORKS.format(count=10)) == "[10.0]\n"


@pytest.mark.long
def test_a_hundred_forks(fresh_process):
    assert fresh_process(FORKS.format(count=100)) == "[100.0]\n"
