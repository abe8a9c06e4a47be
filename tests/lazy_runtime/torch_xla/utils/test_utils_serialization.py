"""Saving tensor by tensor."""

from __future__ import annotations

import os
import shutil
from collections import OrderedDict

import torch

import lazy_runtime
from lazy_runtime.common import metrics
from lazy_runtime.torch_xla.utils import serialization


def test_save_and_load(tmp_path):
    path = str(tmp_path / "model.pt")
    layer = torch.nn.Linear(3, 2).to("xla")
    data = {"weights": layer.state_dict(), "steps": (4, torch.arange(3)), "sum": layer.weight.sum()}
    lazy_runtime.sync()
    metrics.clear()
    serialization.save(data, path)
    assert metrics.value("ExecuteComputation") <= 1
    assert sorted(os.listdir(f"{path}.tensors")) == ["tensor_0.pt", "tensor_1.pt", "tensor_2.pt"]
    loaded = serialization.load(path)
    assert {tensor.device.type for tensor in loaded["weights"].values()} == {"cpu"}
    assert torch.equal(loaded["weights"]["weight"], layer.weight.cpu())
    assert loaded["sum"] == layer.weight.sum().cpu()
    assert (loaded["steps"][0], loaded["steps"][1].tolist()) == (4, [0, 1, 2])


def test_tied_weights_are_one_file(tmp_path):
    layer = torch.nn.Linear(3, 3, bias=False).to("xla")
    path = str(tmp_path / "model.pt")
    serialization.save(
        {"first": layer.weight.detach(), "second": layer.weight.detach(), "third": layer.weight.t()}, path
    )
    assert len(os.listdir(f"{path}.tensors")) == 2
    loaded = serialization.load(path)
    assert loaded["first"] is loaded["second"]
    assert torch.equal(loaded["third"], layer.weight.t().cpu())


def test_what_was_saved_before_is_gone(tmp_path):
    path = str(tmp_path / "model.pt")
    counts = (2, 1, 1, 3, 0)
    for number, count in enumerate(counts):
        serialization.save([torch.full((2,), float(number), device="xla") for _ in range(count)], path)
        assert len(os.listdir(f"{path}.tensors")) == count
        assert [tensor.tolist() for tensor in serialization.load(path)] == [[number, number]] * count


class Copying:
    """Copies a folder when it is pickled: what is there if the process is killed before the structure is written."""

    def __init__(self, folder: str):
        self.folder = folder

    def __reduce__(self):
        shutil.copytree(self.folder, f"{self.folder} in the middle")
        return OrderedDict, ()


def test_a_process_that_is_killed_while_it_saves(tmp_path):
    folder = str(tmp_path / "checkpoints")
    os.mkdir(folder)
    serialization.save([torch.ones(1, device="xla"), torch.ones(2, device="xla")], f"{folder}/model.pt")
    serialization.save([torch.zeros(2, device="xla"), Copying(folder)], f"{folder}/model.pt")
    left = f"{folder} in the middle"
    assert [tensor.tolist() for tensor in serialization.load(f"{left}/model.pt")] == [[1], [1, 1]]
    for path in (left, folder):
        serialization.save([torch.full((1,), 2.0, device="xla")], f"{path}/model.pt")
        assert [tensor.tolist() for tensor in serialization.load(f"{path}/model.pt")] == [[2]]
        assert sorted(os.listdir(path)) == ["model.pt", "model.pt.tensors"]
        assert len(os.listdir(f"{path}/model.pt.tensors")) == 1


def test_the_structure_refers_to_files(tmp_path):
    path = str(tmp_path / "model.pt")
    x, y = torch.ones(2, device="xla"), torch.zeros(3, device="xla")
    serialization.save({"x": x, "again": [x], "y": y, "host": torch.full((1,), 4.0)}, path)
    with torch.serialization.safe_globals([serialization.TensorReference]):
        structure = torch.load(path)
    assert structure["x"] == structure["again"][0] == serialization.TensorReference(0)
    assert structure["y"].tid == 1
    assert structure["host"].item() == 4.0
    assert torch.load(f"{path}.tensors/tensor_{structure['y'].tid}.pt").tolist() == [0] * 3
    torch.save({"z": serialization.TensorReference(1)}, path)
    assert serialization.load(path)["z"].tolist() == [0] * 3
