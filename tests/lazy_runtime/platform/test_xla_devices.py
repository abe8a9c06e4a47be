"""Several devices in one process, which decides their number once."""

from __future__ import annotations

import pytest

import lazy_runtime
from lazy_runtime.common import config


def test_device_names():
    assert lazy_runtime.device().type == "xla"
    assert lazy_runtime.devices()[0] == lazy_runtime.device(0)
    assert lazy_runtime.real_devices()[0].split(":")[0] in ("CPU", "CUDA", "ROCM", "TPU")


def test_a_count_that_is_no_number(monkeypatch):
    monkeypatch.setenv("CPU_NUM_DEVICES", "two")
    with pytest.raises(ValueError, match=r"CPU_NUM_DEVICES is .two., .*: an integer from 1"):
        config.cpu_devices()
    monkeypatch.setenv("CPU_NUM_DEVICES", "0")
    with pytest.raises(ValueError, match=r"CPU_NUM_DEVICES is .0., .*: an integer from 1"):
        config.cpu_devices()


def test_two_devices(forked_process):
    forked_process(
        """
        import threading
        import torch, lazy_runtime

        def raises(message, function):
            try:
                function()
            except RuntimeError as error:
                assert message in str(error), error
            else:
                raise AssertionError(message)

        assert lazy_runtime.devices() == [torch.device("xla:0"), torch.device("xla:1")]
        assert torch.xla.device_count() == 2
        host = torch.arange(6.0).reshape(2, 3)
        x, y = host.to("xla:0"), host.to("xla:1")
        assert (x.device.index, y.device.index) == (0, 1)
        assert (x * 2).tolist() == (y * 2).tolist() == (host * 2).tolist()
        assert (y + 1).device == y.device

        # between devices
        moved = (x + 1).to("xla:1")
        assert moved.device == y.device and torch.equal(moved.cpu(), host + 1)
        y.copy_(x * 3)
        assert torch.equal(y.cpu(), host * 3)
        raises("found at least two devices, xla:0 and xla:1!", lambda: x + y)
        raises("found at least two devices, xla:0 and xla:1!", lambda: x.t() @ y)
        raises("xla:9 does not exist: this process has 2 xla devices (xla:0 to xla:1)", lambda: host.to("xla:9"))
        raises("xla:2 does not exist", lambda: torch.xla.set_device(2))

        # the current device
        with torch.device("xla:1"):
            assert torch.ones(2).device == torch.nn.Linear(2, 2).weight.device == y.device
        assert torch.ones(2, device="xla").device.index == 0
        with torch.xla.device(1):
            assert torch.ones(2, device="xla").device.index == torch.xla.current_device() == 1
        assert torch.xla.current_device() == 0
        assert lazy_runtime.device(1) == torch.ones(2, device="xla").device == lazy_runtime.device() == y.device
        assert lazy_runtime.device(0) == lazy_runtime.device() == x.device
        torch.xla.set_device(1)
        assert lazy_runtime.device().index == torch.tensor([1], device="xla").device.index == 1
        torch.xla.set_device(0)

        # backward on both, one graph across both, and from threads of their own
        a = torch.ones(3, device="xla:0", requires_grad=True)
        b = torch.ones(3, device="xla:1", requires_grad=True)
        ((a * 2).to("xla:1") * b * 3).sum().backward()
        assert (a.grad.device.index, b.grad.device.index) == (0, 1)
        assert a.grad.tolist() == b.grad.tolist() == [6, 6, 6]
        results = {}
        def train(index):
            layer = torch.nn.Linear(4, 2).to(f"xla:{index}")
            for _ in range(3):
                layer(torch.ones(2, 4, device=f"xla:{index}")).sum().backward()
                lazy_runtime.sync()
            results[index] = layer.weight.grad.tolist()
        threads = [threading.Thread(target=train, args=(index,)) for index in (0, 1)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert results == {0: [[6.0] * 4] * 2, 1: [[6.0] * 4] * 2}, results

        # random streams of their own
        lazy_runtime.manual_seed(3)
        u, v = torch.rand(3, device="xla:0"), torch.rand(3, device="xla:1")
        assert torch.equal(u.cpu(), v.cpu())
        lazy_runtime.manual_seed(4, "xla:1")
        assert not torch.equal(torch.rand(3, device="xla:0").cpu(), torch.rand(3, device="xla:1").cpu())
        with torch.random.fork_rng(devices=[0, 1], device_type="xla"):
            inside = torch.rand(3, device="xla:1").cpu()
        assert torch.equal(torch.rand(3, device="xla:1").cpu(), inside)

        import io
        file = io.BytesIO(); torch.save(y, file); file.seek(0)
        assert torch.load(file).device == y.device
        file.seek(0)
        assert torch.load(file, map_location={"xla:1": "xla:0"}).device == x.device
        lazy_runtime.sync(wait=True)
        """,
        CPU_NUM_DEVICES="2",
        JAX_PLATFORMS="cpu",
    )


def test_the_number_of_devices_holds_for_a_program_that_begins_on_plain_tensors(forked_process):
    forked_process(
        """
        import torch
        import lazy_runtime

        compiled = torch.compile(lambda x: x * 2, backend="openxla")
        assert compiled(torch.ones(2)).tolist() == [2, 2]
        assert lazy_runtime.device_count() == 2
        """,
        CPU_NUM_DEVICES="2",
        JAX_PLATFORMS="cpu",
    )


def test_an_installed_torch_xla_owns_the_device(fresh_process, tmp_path):
    (tmp_path / "torch_xla").mkdir()
    (tmp_path / "torch_xla" / "__init__.py").write_text("raise ImportError('not to be imported')\n")
    fresh_process(
        """
        import torch
        import lazy_runtime

        for _ in range(2):
            try:
                lazy_runtime.devices()
            except RuntimeError as error:
                assert "pip uninstall torch_xla" in str(error), error
            else:
                raise AssertionError("took over from torch_xla")
        """,
        PYTHONPATH=str(tmp_path),
    )


def test_a_process_may_end_while_its_programs_run(forked_process):
    """Torch's kernels in them would otherwise run on in libraries that have been taken down."""
    forked_process(
        """
        import torch
        import lazy_runtime
        layers = [torch.nn.Sequential(torch.nn.Conv2d(1024, 1024, 1), torch.nn.ReLU()) for _ in range(4)]
        model = torch.nn.Sequential(*layers).to("xla")
        for _ in range(8):
            x = torch.zeros(32, 1024, 14, 14, device="xla")
            model(x).sum().backward()
            lazy_runtime.sync()
        """
    )


def test_a_forked_child_waits_for_nothing(forked_process):
    forked_process(
        """
        import os, sys, warnings
        import torch
        import lazy_runtime
        x = torch.ones(4, device="xla") + 1
        lazy_runtime.sync()
        warnings.simplefilter("ignore")  # jax's, of the fork
        child = os.fork()
        if child == 0:
            sys.exit(7)  # runs what is registered for the end
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        """
    )
