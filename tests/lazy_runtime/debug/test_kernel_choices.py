"""`debug.kernels`: which kernel an operator of a program took, and why not those before it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lazy_runtime
from lazy_runtime import debug
from lazy_runtime.compilation import compiler
from lazy_runtime.debug import compiling
from lazy_runtime.ops import kernels
from tests import native_part

native_part.need_bridge()


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    """Nothing has been chosen, and every program is lowered."""
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_PATH", "0")
    lazy_runtime.sync()
    compiler.clear()
    compiling.clear()
    kernels.clear()
    yield
    compiler.clear()


def test_operators_of_a_lazy_program():
    x, weight = torch.randn(1, 3, 6, 7).to("xla"), torch.randn(5, 3, 3, 3).to("xla")
    y = torch.nn.functional.conv2d(x, weight)
    (y.flatten(1) @ torch.randn(100, 2).to("xla")).cpu()
    convolution, product = debug.kernels()
    assert (convolution.operator, convolution.choice.kind) == ("aten::convolution", "convolution")
    assert convolution.choice.kernel == "ATen"
    refused = dict(convolution.choice.refused)
    assert "not kept" in refused["oneDNN, packed filters"]
    assert "multiples of 16" in refused["Winograd"]
    assert "test_kernel_choices.py" in convolution.region
    assert (product.operator, product.choice.kernel) == ("aten::mm", "XLA")
    assert "aten::convolution: convolution, images 1x3x6x7, filters 5x3x3x3 of float32 on cpu: ATen" in str(convolution)
    assert "not Winograd: " in str(convolution)


def test_a_gradient_says_of_what_it_is():
    layer = nn.Conv2d(4, 8, 3).to("xla")
    image = torch.randn(2, 4, 9, 9, device="xla", requires_grad=True)
    layer(image).sum().backward()
    lazy_runtime.sync()
    found = [each.choice.problem.gradient for each in debug.kernels() if each.choice.kind == "convolution gradient"]
    assert sorted(found) == ["filters", "image"]


def test_a_compiled_model_with_kept_weights():
    torch._dynamo.reset()
    model = nn.Sequential(nn.Conv2d(64, 64, 3, groups=2), nn.Flatten(), nn.Linear(1600, 128)).eval().to("xla")
    with torch.no_grad():
        torch.compile(model, backend="openxla")(torch.randn(8, 64, 7, 7, device="xla")).cpu()
    packed = [each.choice for each in debug.kernels() if each.choice.is_packing]
    assert [choice.kind for choice in packed] == ["convolution", "matrix product"]
    assert all(choice.problem.kept_on == "xla" for choice in packed)
    assert "with a kept weight" in str(packed[0])
    torch._dynamo.reset()


def test_operators_of_a_nested_graph_have_their_own_names():
    torch._dynamo.reset()
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(125, 7)).to("xla")
    loss = torch.compile(model, backend="openxla")(torch.randn(2, 3, 7, 7, device="xla")).square().sum()
    loss.backward()
    lazy_runtime.sync()
    names = {each.operator for each in debug.kernels()}
    assert {"aten::convolution", "aten::convolution_backward"} <= names
    assert "openxla::graph" not in names
    torch._dynamo.reset()


def test_a_compilation_has_its_own():
    x = torch.randn(3, 17, device="xla")
    (x @ x.t()).cpu()
    (found,) = [each for each in debug.compilations() if each.kernels]
    assert [each.choice.kind for each in found.kernels] == ["matrix product"]
