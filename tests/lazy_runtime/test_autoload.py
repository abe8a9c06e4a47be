"""What `import torch` does when this package is installed, and that it leaves programs without xla alone."""

from __future__ import annotations

import pytest


def test_a_cpu_program_is_left_alone_and_xla_still_works_later(fresh_process):
    fresh_process(
        """
        import os, sys, threading, warnings
        import torch
        assert "jax" not in sys.modules and "lazy_runtime.recording.dispatch" not in sys.modules
        import lazy_runtime
        assert "jax" not in sys.modules
        assert torch.get_default_dtype() is torch.float32 and torch.tensor(1.0).device.type == "cpu"
        assert torch.xla._initialized is False

        def backward(device="cpu"):
            x = torch.ones(3, requires_grad=True, device=device)
            (x * x).sum().backward()
            return x.grad.tolist() == [2, 2, 2]

        # backward, fork, backward in the child: dies where autograd has device threads
        assert backward()
        child = os.fork()
        if child == 0:
            os._exit(0 if backward() else 3)
        assert os.waitpid(child, 0)[1] == 0
        assert backward()
        assert "jax" not in sys.modules

        # xla is used first now, after autograd has fixed its queues without it
        assert backward("xla")
        import jax
        import jax.numpy as jnp
        assert not jax.config.jax_enable_x64
        assert jnp.arange(3).dtype == jnp.int32
        assert backward() and backward("xla")
        failed = []
        def work():
            try:
                for _ in range(3):
                    assert backward("xla") and backward()
                    lazy_runtime.sync()
            except BaseException as error:
                failed.append(error)
        threads = [threading.Thread(target=work) for _ in range(3)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert not failed, failed
        """
    )


@pytest.mark.parametrize("factory", ["torch.arange(3, device=d)", "torch.tril_indices(2, 2, device=d)"])
def test_a_factory_as_the_first_use(fresh_process, factory):
    """Torch's composites begin with an empty tensor, whose storage said 0 bytes; the indices have none for xla."""
    fresh_process(f"""
        import torch
        d = "xla"
        x = {factory}
        assert x.untyped_storage().nbytes() == x.reshape(-1).untyped_storage().nbytes() == x.numel() * 8
        d = "cpu"
        assert x.cpu().equal({factory})
    """)


def test_the_first_tensor_keeps_its_strides(fresh_process):
    code = """
        import torch
        print(torch.zeros(3, 2).t().to("xla").stride())
    """
    assert fresh_process(code) == "(1, 2)\n"
