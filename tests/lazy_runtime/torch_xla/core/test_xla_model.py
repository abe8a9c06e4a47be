"""`xm`."""

from __future__ import annotations

import gc
import io
import os
import shutil
from collections import OrderedDict
from pathlib import Path

import pytest
import torch

import lazy_runtime
from lazy_runtime.common import metrics
from lazy_runtime.torch_xla import runtime as xr
from lazy_runtime.torch_xla.core import xla_model as xm


def test_devices():
    device = xm.xla_device()
    assert device == torch.device("xla:0") == xm.xla_device(0)
    kind = xm.xla_device_hw(device)
    assert kind == xr.device_type()
    assert xm.xla_device(devkind=kind) == device
    with pytest.raises(RuntimeError, match="there is no NEURON device"):
        xm.xla_device(devkind="NEURON")
    with pytest.raises(RuntimeError, match="xla:9 does not exist"):
        xm.xla_device(9)
    assert xm.xla_device_hw("cpu") == "CPU"
    assert xm.get_xla_supported_devices() == [str(each) for each in lazy_runtime.devices()]
    assert xm.get_xla_supported_devices(kind, max_devices=1) == ["xla:0"]
    assert xm.get_xla_supported_devices("NEURON") is None
    assert xm.get_xla_supported_devices(1) == xm.get_xla_supported_devices(max_devices=1) == ["xla:0"]
    assert xm.xla_device_kind() == xm.xla_device_kind("xla:0") != ""
    assert xm.xla_real_devices() == xm.xla_real_devices([]) == lazy_runtime.real_devices()
    assert xm.xla_real_devices(["xla:0"]) == [f"{kind}:0"]
    assert xm.parse_xla_device("xla:3") == ("xla", 3)
    assert xm.parse_xla_device("xla") is None
    assert xm.is_xla_tensor(torch.ones(1, device="xla"))
    assert not xm.is_xla_tensor(torch.ones(1))


def test_memory_info_counts_a_buffer():
    gc.collect()  # what earlier tests have left
    before = xm.get_memory_info("xla:0")["bytes_used"]
    x = torch.ones(1 << 20, device="xla")
    lazy_runtime.sync(wait=True)
    after = xm.get_memory_info(x.device)
    assert after["bytes_used"] - before >= 4 << 20
    assert after["peak_bytes_used"] >= after["bytes_used"]
    assert after["bytes_limit"] > after["bytes_used"]


def test_mark_step_executes_and_wait_device_ops_does_not():
    x = torch.ones(3, device="xla") + 1
    xm.wait_device_ops()
    xm.wait_device_ops(["xla:0"])
    assert metrics.value("ExecuteComputation") == 0
    xm.mark_step(wait=True)
    assert metrics.value("ExecuteComputation") == 1
    assert x.tolist() == [2, 2, 2]


def test_stablehlo_of_some_and_of_all():
    x = torch.ones(3, device="xla")
    lazy_runtime.sync()
    y, z = x.sin(), x.cos()
    assert "sine" in xm.get_stablehlo([y])
    assert "cosine" not in xm.get_stablehlo([y])
    for whole in (xm.get_stablehlo(), xm.get_stablehlo([])):
        assert whole.count("stablehlo.sine") == whole.count("stablehlo.cosine") == 1
    assert b"cosine" not in xm.get_stablehlo_bytecode([y])
    assert b"cosine" in xm.get_stablehlo_bytecode()
    assert b"cosine" in xm.get_stablehlo_bytecode([])
    assert metrics.value("ExecuteComputation") == 1
    assert y.shape == z.shape


def test_unlazy():
    x, y = torch.ones(3, device="xla") + 1, torch.ones(3, device="xla") * 3
    xm.unlazy([x, y])
    metrics.clear()
    assert (x.tolist(), y.tolist()) == ([2, 2, 2], [3, 3, 3])
    assert metrics.value("ExecuteComputation") == 0


@pytest.mark.parametrize("barrier", [False, True])
def test_optimizer_step_gives_what_step_gives(barrier):
    weight = torch.nn.Parameter(torch.ones(2, device="xla"))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    lazy_runtime.sync()
    metrics.clear()

    def closure():
        optimizer.zero_grad()
        loss = (weight * 2).sum()
        loss.backward()
        return loss

    loss = xm.optimizer_step(optimizer, barrier=barrier, optimizer_args={"closure": closure})
    assert metrics.value("ExecuteComputation") == barrier
    assert loss.item() == 4
    assert weight.tolist() == [0, 0]
    weight.grad = torch.ones(2, device="xla")
    assert xm.optimizer_step(optimizer) is None


def test_one_replica():
    assert (xm.get_ordinal(), xm.get_local_ordinal(), xm.xrt_world_size()) == (0, 0, 1)
    assert xm.is_master_ordinal()
    assert xm.rendezvous("here", b"mine") == [b"mine"]
    reduced = xm.mesh_reduce("loss", torch.ones(2, device="xla"), lambda found: sum(found))
    assert reduced.device.type == "cpu"
    assert reduced.tolist() == [1, 1]
    seen = []
    xm.do_on_ordinals(seen.append, (torch.ones(1, device="xla"),))
    xm.do_on_ordinals(seen.append, (1,), ordinals=(3,))
    assert [each.device.type for each in seen] == ["cpu"]


def test_master_print():
    file = io.StringIO()
    xm.master_print("a", 1, fd=file, flush=True)
    assert file.getvalue() == "a 1\n"


def test_one_tensor_is_sent_as_a_list():
    (sent,) = xm.send_cpu_data_to_device(torch.ones(2), "xla")
    assert sent.device.type == "xla"


def test_send_cpu_data_to_device():
    sent = xm.send_cpu_data_to_device({"x": [torch.ones(2), 3], "y": (torch.zeros(1),)}, "xla")
    assert sent["x"][0].device == sent["y"][0].device == torch.device("xla:0")
    assert sent["x"][1] == 3
    with pytest.raises(RuntimeError, match="use_spmd"):
        xm.send_cpu_data_to_device([], "xla", input_sharding=1)


def test_random_states():
    xm.set_rng_state(5)
    state = xm.get_rng_state()
    first = torch.rand(3, device="xla").tolist()
    xm.set_rng_state(state)
    with xm.fork_rng():
        assert torch.rand(3, device="xla").tolist() == first
    assert torch.rand(3, device="xla").tolist() == first
    assert torch.rand(3, device="xla").tolist() != first


def test_fork_rng_where_numbers_follow_torch():
    torch.manual_seed(1)
    with xm.fork_rng():
        inner = torch.rand(3, device="xla").tolist()
    assert torch.rand(3, device="xla").tolist() == inner
    with xm.fork_rng(enabled=False):
        torch.rand(3, device="xla")
    assert torch.rand(3, device="xla").tolist() != inner


def test_optimization_barrier():
    x, y = torch.ones(3, device="xla"), torch.arange(2, device="xla")
    metrics.clear()
    xm.optimization_barrier_([x, y])
    assert (x.tolist(), y.tolist()) == ([1, 1, 1], [0, 1])
    assert metrics.value("xla::lazy_runtime::optimization_barrier") == 1


def test_save_is_read_without_xla(tmp_path):
    layer = torch.nn.Linear(2, 3).to("xla")
    data = {"model": layer.state_dict(), "steps": [torch.arange(3, device="xla"), 7], "p": layer.weight}
    metrics.clear()
    xm.save(data, tmp_path / "file.pt")
    loaded = torch.load(tmp_path / "file.pt")
    assert loaded["steps"][0].tolist() == [0, 1, 2]
    assert type(loaded["p"]) is torch.nn.Parameter
    assert {each.device.type for each in (*loaded["model"].values(), loaded["p"])} == {"cpu"}
    assert torch.equal(loaded["model"]["weight"], layer.weight.cpu())
    assert data["model"]["weight"].device.type == "xla"


class Copying:
    """Copies a folder when it is pickled: what is there if the process is killed while it saves."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __reduce__(self):
        shutil.copytree(self.folder, f"{self.folder} in the middle")
        return OrderedDict, ()


def test_a_process_that_is_killed_while_it_saves(tmp_path):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    xm.save([torch.ones(3, device="xla"), "first"], folder / "file.pt")
    xm.save([torch.zeros(3, device="xla"), "second", Copying(folder)], folder / "file.pt")
    assert os.listdir(folder) == ["file.pt"]
    assert torch.load(folder / "file.pt")[1] == "second"
    left = tmp_path / "checkpoints in the middle"
    assert len(os.listdir(left)) == 2
    assert torch.load(left / "file.pt")[0].tolist() == [1, 1, 1]
    xm.save("third", left / "file.pt")
    assert os.listdir(left) == ["file.pt"]


def test_what_shares_memory_shares_it_in_the_file(tmp_path):
    layer = torch.nn.Linear(3, 3).to("xla")
    weight = layer.weight.detach()
    xm.save(
        {"first": weight, "second": layer.weight.detach(), "row": weight[1], "layer": layer.bias}, tmp_path / "file"
    )
    found = torch.load(tmp_path / "file")
    assert {tensor.device.type for tensor in found.values()} == {"cpu"}
    assert found["first"].data_ptr() == found["second"].data_ptr()
    found["first"].zero_()
    assert found["row"].tolist() == [0, 0, 0]
    assert type(found["layer"]) is torch.nn.Parameter


def test_set_replication_chooses_the_device(forked_process):
    forked_process(
        """
        import torch
        import lazy_runtime
        from lazy_runtime.torch_xla.core import xla_model as xm
        xm.set_replication(torch.device("xla:1"), xm.get_xla_supported_devices())
        assert torch.ones(1, device="xla").device == xm.xla_device() == torch.device("xla:1")
        xm.set_replication("xla:0", [])
        assert xm.xla_device() == torch.device("xla:0")
        for device, devices, kind, text in [
            ("xla:1", ["xla:0"], ValueError, "expected a device of xla:0, got xla:1"),
            ("xla:2", [], RuntimeError, "xla:2 does not exist"),
        ]:
            try:
                xm.set_replication(device, devices)
            except kind as error:
                assert text in str(error), error
            else:
                raise AssertionError(text)
        assert xm.xla_device() == torch.device("xla:0")
        """,
        CPU_NUM_DEVICES="2",
        PJRT_DEVICE="CPU",
    )


def test_maybe_convert_to_cpu():
    x = torch.arange(4.0, device="xla") + 1
    data = {"x": x, "view": x[1:], "text": "a", "host": torch.ones(1)}
    metrics.clear()
    assert xm._maybe_convert_to_cpu(data, convert=False) is data
    assert metrics.value("ExecuteComputation") == 1
    found = xm._maybe_convert_to_cpu(data)
    assert metrics.value("ExecuteComputation") == 1
    assert found["x"].tolist() == [1, 2, 3, 4]
    assert found["view"].untyped_storage().data_ptr() == found["x"].untyped_storage().data_ptr()
    assert found["text"] == "a"
    assert found["host"] is data["host"]


def test_values_in_a_nest_are_converted_together():
    converted = []

    def convert(values):
        converted.append(list(values))
        return [-value for value in values]

    twice = 1.5
    nest = {"a": [twice, 1, (twice, 2.5)], "b": OrderedDict(c=3.5), "d": None}
    found = xm.ToXlaTensorArena(convert, lambda value: isinstance(value, float)).transform(nest)
    assert found == {"a": [-1.5, 1, (-1.5, -2.5)], "b": OrderedDict(c=-3.5), "d": None}
    assert type(found["b"]) is OrderedDict
    assert nest["a"] == [1.5, 1, (1.5, 2.5)]
    (values,) = converted
    assert sorted(values) == [1.5, 2.5, 3.5]
