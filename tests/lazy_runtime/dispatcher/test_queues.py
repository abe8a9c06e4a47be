"""xla tensors that are sent to other processes."""

from __future__ import annotations

import pytest
import torch


def sent(tensor):
    queue = torch.multiprocessing.get_context("spawn").SimpleQueue()
    queue.put(tensor)
    return queue.get()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_a_copy_arrives_on_the_device(dtype):
    source = torch.arange(6, device="xla").reshape(2, 3).to(dtype)
    found = sent(source)
    assert found.device == source.device
    assert found.dtype == dtype
    assert torch.equal(found.cpu(), source.cpu())
    source.fill_(1)
    assert not torch.equal(found.cpu(), source.cpu())


def test_leaves_stay_leaves():
    parameter = torch.nn.Parameter(torch.rand(2, device="xla"))
    assert isinstance(sent(parameter), torch.nn.Parameter)
    leaf = torch.rand(2, device="xla", requires_grad=True)
    assert sent(leaf).requires_grad
    assert not sent(leaf.detach()).requires_grad
    with pytest.raises(RuntimeError, match=r"send tensor\.detach\(\)"):
        sent(leaf * 2)


def test_views_and_cpu_tensors():
    base = torch.arange(12.0, device="xla").reshape(3, 4)
    assert torch.equal(sent(base.t()[1:]).cpu(), base.cpu().t()[1:])
    host = torch.zeros(3)
    sent(host).add_(1)
    assert host.sum() == 3  # torch's shared memory


def test_processes_exchange_them(fresh_process):
    printed = fresh_process("""
        import torch
        import torch.multiprocessing as mp

        if __name__ == "__main__":
            context = mp.get_context("spawn")
            queue = context.SimpleQueue()
            x = torch.arange(3.0, device="xla")
            child = context.Process(target=queue.put, args=(x + 1,))  # which has it on its own device before
            child.start()
            child.join()
            print(child.exitcode, queue.get())  # of a process that has ended

            import warnings
            warnings.filterwarnings("ignore", r"os\\\\.fork\\\\(\\\\) was called")
            context = mp.get_context("fork")
            queue, answers = context.SimpleQueue(), context.SimpleQueue()
            queue.put(x)
            def receive():
                try:
                    queue.get()
                except RuntimeError as error:
                    answers.put(str(error))
            child = context.Process(target=receive)
            child.start()
            print(answers.get()[:47])
            child.join()
    """)
    assert printed.splitlines() == [
        "0 tensor([1., 2., 3.], device='xla:0')",
        "Cannot re-initialize xla in a forked subprocess:"[:47],
    ]
