"""Products of bfloat16 in float32, where the processor multiplies that faster."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lazy_runtime.common import processor
from lazy_runtime.compilation import compiler
from lazy_runtime.lowering import aten_bridge
from lazy_runtime.ops.linalg import bfloat16_upcast, matmul_aten, matmul_onednn
from tests import native_part

native_part.need_bridge()

BFLOAT16 = torch.bfloat16


@pytest.fixture(params=["bfloat16", "float32"])
def chosen(request, monkeypatch):
    monkeypatch.setenv("XLA_CPU_BFLOAT16_PRODUCTS", request.param)
    for kernel, name in ((matmul_aten, "LEAST_BFLOAT16"), (matmul_aten, "LEAST_MKL"), (matmul_onednn, "LEAST")):
        monkeypatch.setattr(kernel, name, 1)
    monkeypatch.setenv("XLA_CPU_PRODUCTS", "torch")
    compiler.clear()  # the graphs are the same
    yield request.param
    compiler.clear()


@pytest.fixture
def dtypes(monkeypatch):
    """What the kernels that programs call are given."""
    found = set()
    called = aten_bridge.call

    def call(name, arguments, results, *rest):
        found.update(str(x.dtype).removeprefix("torch.") for x in arguments if hasattr(x, "dtype"))
        return called(name, arguments, results, *rest)

    monkeypatch.setattr(aten_bridge, "call", call)
    return found


FUNCTIONS = {
    "mm": (lambda x, y: x @ y.t(), (17, 24), (19, 24)),
    "bmm": (lambda x, y: torch.bmm(x, y.mT), (3, 17, 24), (3, 19, 24)),
    "linear": (lambda x, y: F.linear(x, y, y[:, 0]), (5, 17, 24), (19, 24)),
    "scaled sum": (lambda x, y: torch.addmm(x[:, :17], x, y.t(), beta=0.5, alpha=2), (17, 24), (17, 24)),
    "batches, summed": (lambda x, y: torch.baddbmm(x[:, :, :17], x, y.mT), (3, 17, 24), (3, 17, 24)),
    "convolution": (lambda x, y: F.conv2d(x, y, y[:, 0, 0, 0], padding=1), (2, 8, 9, 9), (16, 8, 3, 3)),
    "of one pixel": (lambda x, y: F.conv2d(x, y, stride=2), (2, 8, 9, 9), (16, 8, 1, 1)),
    "grouped": (lambda x, y: F.conv2d(x, y, groups=4), (2, 8, 9, 9), (16, 2, 3, 3)),
    "transposed": (lambda x, y: F.conv_transpose2d(x, y, stride=2), (2, 8, 9, 9), (8, 16, 3, 3)),
    "in one dimension": (lambda x, y: F.conv1d(x, y), (2, 8, 19), (16, 8, 3)),
    "one image": (lambda x, y: F.conv2d(x, y), (8, 9, 9), (16, 8, 3, 3)),
    "attention": (lambda x, y: F.scaled_dot_product_attention(x, y, y), (2, 3, 17, 16), (2, 3, 19, 16)),
    "masked": (
        lambda x, y: F.scaled_dot_product_attention(x, y, y, attn_mask=x[0, 0, :, :1] > y[0, 0, :, 0]),
        (2, 3, 17, 16),
        (2, 3, 19, 16),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients(chosen, dtypes, name):
    function, *sizes = FUNCTIONS[name]
    torch.manual_seed(0)
    given = [torch.randn(size) for size in sizes]
    made = []
    for device, dtype in (("cpu", torch.float32), ("xla", BFLOAT16)):
        inputs = [x.to(BFLOAT16).to(device, dtype).requires_grad_() for x in given]
        result = function(*inputs)
        result.sin().sum().backward()
        made.append([tensor.detach().cpu().float() for tensor in (result, *(x.grad for x in inputs))])
    # what is added up is rounded to 8 bits once or twice, its sine too
    for exact, found in zip(*made, strict=True):
        assert (found - exact).norm() / exact.norm() < 2e-2
    assert chosen in dtypes
    assert ("bfloat16" in dtypes) == (chosen == "bfloat16")  # sums of attention's exponentials are float32 in any case


def test_packed_weights(chosen, dtypes):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.filters = nn.Conv2d(8, 16, 3)
            self.plain = nn.Conv2d(16, 16, 3, bias=False)
            self.weight = nn.Linear(16, 32)
            self.last = nn.Linear(32, 4, bias=False)

        def forward(self, x):
            x = (self.plain(self.filters(x).relu()) + 1).relu()
            return self.last(self.weight(x.mean((2, 3))).tanh())

    torch.manual_seed(0)
    model = Model().eval()
    x = torch.randn(4, 8, 12, 12)
    compiled = torch.compile(copy.deepcopy(model).to("xla"), backend="openxla")
    with torch.no_grad():
        expected = model(x)
        for _ in range(2):
            with torch.autocast("xla", BFLOAT16):
                found = compiled(x.to("xla"))
    assert found.dtype == BFLOAT16
    assert (found.cpu().float() - expected).norm() / expected.norm() < 2e-2
    assert chosen in dtypes
    assert ("bfloat16" in dtypes) == (chosen == "bfloat16")


@pytest.mark.parametrize("is_fast", [True, False])
def test_by_default_the_processor_decides(monkeypatch, is_fast):
    monkeypatch.delenv("XLA_CPU_BFLOAT16_PRODUCTS", raising=False)
    monkeypatch.setattr(processor, "has_fast_bfloat16", lambda: is_fast)
    assert bfloat16_upcast.is_wanted("cpu", BFLOAT16) is not is_fast
    assert not bfloat16_upcast.is_wanted("cuda", BFLOAT16)
    assert not bfloat16_upcast.is_wanted("cpu", torch.float16)
