"""Saving tensor by tensor."""

from __future__ import annotations

import os

import torch

import lazy_runtime
from lazy_runtime import metrics
from lazy_runtime.utils import serialization


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


def test_what_was_saved_before_is_gone(tmp_path):
    path = str(tmp_path / "model.pt")
    serialization.save([torch.ones(1, device="xla"), torch.ones(2, device="xla")], path)
    serialization.save([torch.zeros(3, device="xla")], path)
    assert os.listdir(f"{path}.tensors") == ["tensor_0.pt"]
    assert serialization.load(path)[0].tolist() == [0, 0, 0]
