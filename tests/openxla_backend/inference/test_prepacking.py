"""Inference keeps weights in the order of the kernels, and the results are those of the plain ones."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from lazy_runtime.lowering import aten_bridge
from lazy_runtime.ops.convolution import direct_convolution
from lazy_runtime.ops.linalg import packed
from lazy_runtime.tensor.xla_tensor import unwrap
from openxla_backend.inference import constant_hoisting
from tests import native_part
from tests.openxla_backend import helpers

native_part.need_bridge()


@pytest.fixture(autouse=True)
def onednn(monkeypatch):
    """All convolutions are oneDNN's."""
    monkeypatch.setenv("XLA_CPU_WINOGRAD", "0")
    monkeypatch.setenv("XLA_CPU_DIRECT_CONVOLUTIONS", "0")


@pytest.fixture
def kept(monkeypatch):
    """What a compiled model keeps beside its parameters: "packed", "channels last" or a dtype."""
    orders: list[str] = []
    packs: list[str] = []
    call, finish = constant_hoisting.HoistedParameters.__call__, constant_hoisting.finish

    def count(graph):
        names = [node.target.__name__ for node in graph.nodes if node.op == "call_function"]
        packs[:] = ["packed" if name.startswith("pack_") else "transformed" for name in names if _is_order(name)]
        finish(graph)

    def spy(self, arguments):
        results = call(self, arguments)
        orders[:] = packs + [_order(tensor) for tensor in self._kept[1] if tensor.dtype != torch.uint8]
        return results

    monkeypatch.setattr(constant_hoisting, "finish", count)  # small ones share a buffer
    monkeypatch.setattr(constant_hoisting.HoistedParameters, "__call__", spy)
    return orders


def _is_order(name: str) -> bool:
    return name.startswith("pack_") or name.endswith("_filters.default")


def _order(tensor: torch.Tensor) -> str:
    return "channels last" if unwrap(tensor).handle.value.channels_last else str(tensor.dtype)


def _check(model: nn.Module, x: torch.Tensor, dynamic: bool | None = None) -> None:
    # up to 12,544 products in another order; of bfloat16, of factors that were rounded to 8 bits after other sums
    rtol, atol = (1e-4, 1e-4) if x.dtype == torch.float32 else (2e-2, 2e-3)
    helpers.check_inference(model, x, rtol, atol, dynamic)


DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(64, 64, 3),
        nn.Conv2d(64, 128, 1, bias=False),
        nn.Conv2d(64, 96, (3, 1), stride=2, padding=(1, 0), padding_mode="zeros"),
        nn.Conv2d(64, 128, 3, groups=2, dilation=2, padding="same"),
        nn.Conv2d(64, 64, 3, groups=64, padding=1),
        nn.Conv2d(64, 1, 7),
    ],
    ids=str,
)
def test_convolutions(kept, layer, dtype):
    torch.manual_seed(0)
    _check(nn.Sequential(layer, nn.ReLU()).to(dtype), torch.randn(2, 64, 34, 32).to(dtype))
    assert kept.count("packed") == 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 33])
def test_products(kept, rows, bias, dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1024, 1152, bias), nn.Tanh(), nn.Linear(1152, 1000, bias)).to(dtype)
    _check(model, torch.randn(rows, 1024).to(dtype) / 8)
    assert kept.count("packed") == 2


def test_products_of_batches_of_rows(kept):
    torch.manual_seed(0)
    _check(nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)), torch.randn(4, 50, 256))
    assert kept.count("packed") == 2


@pytest.mark.parametrize("padding", [0, 1, (2, 1)])
@pytest.mark.parametrize("channels", [16, 80, 192])
def test_filters_of_three_by_three(kept, monkeypatch, channels, padding):
    monkeypatch.setenv("XLA_CPU_WINOGRAD", "1")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(32, channels, 3, padding=padding), nn.ReLU())
    _check(model, torch.randn(2, 32, 19, 21))
    assert "transformed" in kept
    assert "packed" not in kept


@pytest.mark.parametrize(
    "layer",
    [nn.Conv2d(32, 24, 1), nn.Conv2d(32, 32, 3, stride=2, padding=1, groups=32), nn.Conv2d(32, 32, 5, groups=32)],
    ids=str,
)
def test_filters_of_kernels_of_ours(kept, monkeypatch, layer):
    monkeypatch.setenv("XLA_CPU_DIRECT_CONVOLUTIONS", "1")
    torch.manual_seed(0)
    _check(nn.Sequential(layer, nn.ReLU6()), torch.randn(2, 32, 29, 31))
    assert ("transformed" in kept) == bool(direct_convolution.available("pointwise", "cpu"))


def test_one_weight_of_several_layers_is_kept_once_for_each_size(kept):
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Conv2d(64, 64, 3, padding=1)

        def forward(self, x):
            y = self.layer(self.layer(x))
            return self.layer(torch.nn.functional.max_pool2d(y, 2))

    torch.manual_seed(0)
    _check(Shared(), torch.randn(2, 64, 16, 16))
    assert kept.count("packed") == 2


def test_filters_for_images_of_any_size_are_channels_last(kept):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(64, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 128, 3, groups=2))
    _check(model, torch.randn(2, 64, 18, 18), dynamic=True)
    assert kept.count("channels last") == 2
    assert "packed" not in kept


@pytest.mark.parametrize(
    ("model", "size"),
    [
        (nn.Linear(8, 8), (4, 8)),  # a call would take longer than the product
        (nn.Linear(256, 1024).double(), (32, 256)),  # oneDNN has no float64
        (nn.ConvTranspose2d(64, 64, 3), (2, 64, 18, 18)),
        (nn.Conv2d(64, 64, 3), (0, 64, 18, 18)),
    ],
    ids=str,
)
def test_others_stay_as_they_are(kept, model, size):
    torch.manual_seed(0)
    _check(model, torch.randn(size).to(next(model.parameters()).dtype))
    assert "packed" not in kept


def test_nans_and_infinities():
    torch.manual_seed(0)
    x = torch.randn(2, 64, 18, 18)
    x[0, 0, 0, 0], x[1, 1, 1, 1] = float("nan"), float("inf")
    model = nn.Sequential(nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 16 * 16, 100)).eval()
    with torch.no_grad():
        expected = model(x)
        found = torch.compile(model.to("xla"), backend="openxla")(x.to("xla")).cpu()
    assert torch.equal(found.isnan(), expected.isnan())


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


MODEL = (nn.Conv2d(64, 128, 3, groups=2), nn.ReLU(), nn.Conv2d(128, 64, 1), nn.Flatten(), nn.Linear(64 * 14 * 14, 100))


@pytest.mark.parametrize("numbers", [(1, 2), (2, 1)])
def test_the_number_of_threads_changes_between_compiling_and_packing(kept, threads, numbers):
    torch.manual_seed(0)
    first, second = numbers
    model = nn.Sequential(*MODEL).eval()
    x = torch.randn(4, 64, 16, 16)
    with torch.no_grad():
        torch.set_num_threads(first)
        ours = copy.deepcopy(model).to("xla")
        compiled = torch.compile(ours, backend="openxla")
        torch.testing.assert_close(compiled(x.to("xla")).cpu(), model(x), rtol=1e-4, atol=1e-4)
        torch.set_num_threads(second)
        for parameter in [*ours.parameters(), *model.parameters()]:
            parameter.mul_(1.5)
        torch.testing.assert_close(compiled(x.to("xla")).cpu(), model(x), rtol=1e-4, atol=1e-4)
    assert kept.count("packed") == 3


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_weight_that_has_no_room_when_packed_stays_in_torchs_order(kept, monkeypatch, dtype):
    def plain(tensor):
        return 64 + tensor.numel() * dtype.itemsize

    monkeypatch.setattr(packed, "_bytes", plain)
    for function in (packed._filter_bytes, packed._matrix_bytes):
        function.cache_clear()
        monkeypatch.setattr(packed, function.__name__, function.__wrapped__)
    torch.manual_seed(0)
    _check(nn.Sequential(*MODEL).to(dtype), torch.randn(4, 64, 16, 16).to(dtype))
    assert kept.count("packed") == 3


def test_a_write_to_a_weight_is_seen(kept):
    torch.manual_seed(0)
    model = nn.Linear(1024, 1152).eval().to("xla")
    compiled = torch.compile(model, backend="openxla")
    x = torch.randn(4, 1024).to("xla")
    with torch.no_grad():
        first = compiled(x).cpu()
        model.weight.mul_(2)
        model.bias.mul_(2)
        second = compiled(x).cpu()
    assert kept.count("packed") == 1
    torch.testing.assert_close(second, first * 2)


def test_weights_that_share_a_buffer_are_read_where_they_lie(monkeypatch):
    parts = []
    call = aten_bridge.call

    def spy(name, arguments, *rest):
        if "convolution_pointwise" in name:
            weight, bias = arguments[1:3]
            parts.append((weight.physical, weight.offset, bias.physical, bias.start))
        return call(name, arguments, *rest)

    monkeypatch.setattr(aten_bridge, "call", spy)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 32, 3, padding=1))
    _check(model, torch.randn(2, 64, 14, 14))
    (weights, at, biases, start), (more_weights, beyond, more_biases, end) = parts
    assert weights is more_weights
    assert biases is more_biases
    assert at == 0
    assert beyond > 0
    assert beyond % 64 == 0
    assert sorted([start, end]) in ([0, 32], [0, 64])
