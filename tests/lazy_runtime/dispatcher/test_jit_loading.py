"""TorchScript archives that are loaded to xla."""

from __future__ import annotations

import io
import warnings

import pytest
import torch


@pytest.mark.parametrize("location", ["xla", "xla:0", torch.device("xla"), "cpu", None])
def test_load(location):
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit's own
        torch.jit.save(torch.jit.script(module.eval()), file)
        file.seek(0)
        loaded = torch.jit.load(file, location)
    device = torch.device(location or "cpu").type
    assert {each.device.type for each in (*loaded.parameters(), *loaded.buffers())} == {device}
    x = torch.rand(2, 4)
    torch.testing.assert_close(loaded(x.to(device)).cpu(), module(x))
