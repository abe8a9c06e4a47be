"""Convolutions of every geometry, in torch's kernels through the ATen bridge and in XLA alone."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from lazy_runtime.common import processor
from lazy_runtime.compilation import compiler
from lazy_runtime.lowering import aten_bridge
from lazy_runtime.ops.convolution import convolution_aten
from lazy_runtime.ops.linalg import matmul_aten, packed
from tests import native_part
from tests.lazy_runtime.ops.comparison import check, rand

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}

#: (image, filter, options); the filter is (out, in / groups, ...)
GEOMETRIES = {
    "1d": ((2, 3, 9), (4, 3, 3), {}),
    "1d stride padding dilation": ((2, 4, 11), (6, 2, 3), {"stride": 2, "padding": 3, "dilation": 2, "groups": 2}),
    "1d unbatched": ((3, 9), (4, 3, 2), {"padding": 1}),
    "2d": ((2, 3, 7, 6), (4, 3, 3, 2), {}),
    "2d one by one": ((2, 3, 5, 6), (4, 3, 1, 1), {}),
    "2d one by one stride padding": ((2, 3, 5, 6), (4, 3, 1, 1), {"stride": (2, 3), "padding": (1, 2)}),
    "2d one by one groups": ((2, 4, 5, 6), (6, 2, 1, 1), {"groups": 2}),
    "2d stride that leaves a rest": ((1, 2, 8, 9), (3, 2, 3, 3), {"stride": 2}),
    "2d stride larger than the filter": ((1, 2, 9, 8), (3, 2, 2, 2), {"stride": (4, 3)}),
    "2d uneven": ((2, 3, 9, 8), (4, 3, 3, 2), {"stride": (2, 1), "padding": (2, 1), "dilation": (1, 3)}),
    "2d padding same": ((2, 3, 6, 5), (4, 3, 3, 4), {"padding": "same"}),
    "2d groups": ((2, 4, 7, 6), (6, 2, 3, 3), {"groups": 2, "padding": 1}),
    "2d depthwise": ((2, 4, 7, 6), (4, 1, 3, 3), {"groups": 4, "padding": 1, "stride": 2}),
    "2d depthwise dilated": ((2, 4, 9, 8), (4, 1, 3, 2), {"groups": 4, "dilation": (2, 3)}),
    "2d depthwise times two": ((2, 3, 7, 6), (6, 1, 3, 3), {"groups": 3}),
    "2d one channel": ((2, 1, 7, 6), (1, 1, 3, 3), {}),
    "2d unbatched": ((3, 7, 6), (4, 3, 3, 3), {"stride": 2}),
    "3d": ((2, 3, 5, 4, 6), (4, 3, 3, 2, 2), {"stride": (1, 2, 1), "padding": (1, 0, 2)}),
    "3d groups dilation": ((1, 4, 6, 5, 5), (4, 2, 2, 2, 2), {"groups": 2, "dilation": 2}),
    "3d unbatched": ((3, 4, 5, 4), (2, 3, 2, 2, 2), {}),
}

#: the filter is (in, out / groups, ...)
TRANSPOSED_GEOMETRIES = {
    "1d": ((2, 3, 5), (3, 4, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
    "1d unbatched": ((3, 5), (3, 4, 2), {}),
    "2d": ((2, 3, 4, 5), (3, 4, 3, 2), {}),
    "2d one by one": ((2, 3, 4, 5), (3, 4, 1, 1), {"stride": 2}),
    "2d uneven": ((2, 3, 4, 5), (3, 2, 3, 2), {"stride": (2, 3), "padding": (1, 0), "output_padding": (1, 2)}),
    "2d padding larger than the reach": ((1, 2, 6, 6), (2, 3, 2, 2), {"padding": 2}),
    "2d groups dilation": ((2, 4, 4, 5), (4, 3, 2, 3), {"groups": 2, "dilation": (2, 1), "stride": 2}),
    "2d depthwise": ((2, 4, 4, 5), (4, 1, 3, 3), {"groups": 4, "stride": 2, "padding": 1}),
    "3d": ((1, 3, 3, 4, 2), (3, 2, 2, 3, 2), {"stride": (2, 1, 2), "padding": (0, 1, 0)}),
}

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")

CASES = [pytest.param(CONV, *case, id=name) for name, case in GEOMETRIES.items()] + [
    pytest.param(TRANSPOSED, *case, id=f"transposed {name}") for name, case in TRANSPOSED_GEOMETRIES.items()
]


@pytest.fixture(params=["bridge", "xla alone"])
def way(request, monkeypatch):
    """How the CPU's convolutions are lowered. What one way compiled must not serve the other."""
    compiler.clear()
    if request.param == "xla alone":
        monkeypatch.setattr(aten_bridge, "available", lambda: False)
    yield request.param
    compiler.clear()


@pytest.fixture
def bridged(monkeypatch):
    """The names of the operators that were lowered through the bridge."""
    names = []
    call = aten_bridge.call

    def spy(name, arguments, results):
        names.append(name.removeprefix("aten::"))
        return call(name, arguments, results)

    monkeypatch.setattr(aten_bridge, "call", spy)
    return names


def convolve(family, image, filters, options, bias, dtype):
    n = len(filters) - 2
    channels = filters[0] if family is CONV else filters[1] * options.get("groups", 1)
    vector = rand(channels, dtype=dtype) if bias else None
    return check(family[n], rand(*image, dtype=dtype), rand(*filters, dtype=dtype), vector, **options)


@pytest.mark.parametrize(("family", "image", "filters", "options"), CASES)
def test_float32(way, family, image, filters, options):
    convolve(family, image, filters, options, bias=True, dtype=torch.float32)


@pytest.mark.parametrize(("family", "image", "filters", "options"), CASES)
def test_float64_without_bias(family, image, filters, options):
    convolve(family, image, filters, options, bias=False, dtype=torch.float64)


@pytest.mark.parametrize(("family", "image", "filters", "options"), CASES)
def test_bfloat16(way, family, image, filters, options):
    convolve(family, image, filters, options, bias=True, dtype=torch.bfloat16)


def test_float64_groups_without_a_bridge(monkeypatch):
    compiler.clear()
    monkeypatch.setattr(aten_bridge, "available", lambda: False)
    for name in ("2d groups", "2d depthwise"):
        convolve(CONV, *GEOMETRIES[name], bias=True, dtype=torch.float64)
    compiler.clear()


@pytest.mark.parametrize(
    ("name", "dtype", "expected"),
    [
        ("2d", torch.float32, ["convolution", "convolution_backward"]),
        ("2d", torch.bfloat16, ["convolution", "convolution_backward"]),
        ("2d", torch.float64, []),  # oneDNN has none
        ("2d groups", torch.float64, ["convolution", "convolution_backward"]),
        ("2d one by one", torch.float32, []),  # a matrix product, of few pixels
        ("2d one by one groups", torch.float32, ["convolution", "convolution_backward"]),
    ],
)
def test_which_way_it_goes_on_the_cpu(bridged, name, dtype, expected):
    compiler.clear()
    convolve(CONV, *GEOMETRIES[name], bias=False, dtype=dtype)
    assert bridged == expected


@pytest.fixture
def least_copied(monkeypatch):
    """Every weight is large enough not to be copied."""
    native_part.need_bridge()
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN")
    monkeypatch.setattr(convolution_aten, "LEAST_COPIED", 1)
    compiler.clear()
    yield
    compiler.clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["2d", "2d uneven", "2d padding same", "2d one channel", "2d unbatched"])
def test_weights_that_are_read_as_they_lie(least_copied, bridged, name, dtype):
    if not packed.available("cpu", dtype):
        pytest.skip(f"no {dtype} in oneDNN on this processor")
    convolve(CONV, *GEOMETRIES[name], bias=True, dtype=dtype)
    assert bridged == ["mkldnn::_convolution_pointwise", "convolution_backward"]


@pytest.mark.parametrize("name", ["1d", "2d groups", "2d one by one groups", "3d"])
def test_weights_that_are_not(least_copied, bridged, name):
    convolve(CONV, *GEOMETRIES[name], bias=False, dtype=torch.float32)
    assert bridged == ["convolution", "convolution_backward"]


def test_a_large_weight(bridged):
    compiler.clear()
    convolve(CONV, (2, 128, 5, 5), (256, 128, 3, 3), {"padding": 1}, bias=True, dtype=torch.float32)
    way = "mkldnn::_convolution_pointwise" if packed.available("cpu", torch.float32) else "convolution"
    assert bridged == [way, "convolution_backward"]


@pytest.mark.parametrize("owner", ["torch", "xla"])
@pytest.mark.parametrize("name", ["2d one by one", "2d one by one stride padding"])
def test_products_over_the_channels(bridged, monkeypatch, name, owner):
    compiler.clear()
    monkeypatch.setenv("XLA_CPU_PRODUCTS", owner)
    monkeypatch.setattr(matmul_aten, "LEAST_MKL", 1)
    convolve(CONV, *GEOMETRIES[name], bias=True, dtype=torch.float32)
    assert bridged == (["mm.out"] * 3 if owner == "torch" else [])
    compiler.clear()


@pytest.mark.parametrize("is_amd", [True, False])
@pytest.mark.parametrize("name", ["2d one by one", "2d one by one stride padding"])
def test_products_of_many_pixels_are_onednns_on_amd(bridged, monkeypatch, name, is_amd):
    compiler.clear()
    monkeypatch.delenv("XLA_CPU_PRODUCTS", raising=False)
    monkeypatch.setattr(processor, "is_amd", lambda: is_amd)
    monkeypatch.setattr(processor, "is_intel", lambda: False)
    image, filters, options = GEOMETRIES[name]
    shape = F.conv2d(rand(*image), rand(*filters), **options).shape
    pixels = shape[0] * shape[2] * shape[3]
    for least, expected in (pixels, ["convolution", "convolution_backward"] if is_amd else []), (pixels + 1, []):
        monkeypatch.setattr(convolution_aten, "LEAST_PIXELS", least)
        bridged.clear()
        compiler.clear()
        convolve(CONV, image, filters, options, bias=True, dtype=torch.float32)
        assert bridged == expected
    compiler.clear()


@pytest.mark.parametrize("wanted", [(True, False, False), (False, True, False), (False, False, True)])
def test_one_gradient_alone(way, wanted):
    image, filters, bias = rand(2, 3, 7, 6), rand(4, 3, 3, 3), rand(4)
    for tensor, flag in zip((image, filters, bias), wanted, strict=True):
        tensor.requires_grad_(flag)
    check(F.conv2d, image, filters, bias, padding=1)


def test_an_empty_batch(way):
    check(F.conv2d, rand(0, 3, 7, 6), rand(4, 3, 3, 3), rand(4), padding=1)


@pytest.mark.parametrize("memory", [torch.channels_last, torch.contiguous_format])
def test_images_in_channels_last_memory(way, memory):
    image, filters = (rand(2, 4, 7, 6), rand(4, 4, 3, 3))
    image = image.detach().to(memory_format=memory).requires_grad_()

    def two_layers(x, w):
        return F.conv2d(F.relu(F.conv2d(x, w, padding=1)), w, stride=2) + 1

    check(two_layers, image, filters)


def test_the_gradient_of_the_gradient():
    def penalty(x, w):
        (grad,) = torch.autograd.grad(F.conv2d(x, w, stride=2).square().sum(), x, create_graph=True)
        return grad.square().sum()

    check(penalty, rand(2, 2, 6, 5), rand(3, 2, 3, 2))
