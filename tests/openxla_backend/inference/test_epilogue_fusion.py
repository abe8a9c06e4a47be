"""Inference: what follows a convolution is computed with it, and the results are those of the plain operators."""

from __future__ import annotations

import copy
import os
import pathlib
import re
import time

import pytest
import torch
from torch import nn

from lazy_runtime.ops.linalg import packed
from openxla_backend.inference import constant_hoisting
from tests import native_part
from tests.openxla_backend.helpers import check_inference

native_part.need_bridge()


_TASKS = pathlib.Path("/proc/self/task")


@pytest.fixture(autouse=True, params=["oneDNN", "ours"])
def kernels(request, monkeypatch):
    """Whose kernels compute convolutions."""
    ours = "1" if request.param == "ours" else "0"
    monkeypatch.setenv("XLA_CPU_WINOGRAD", ours)
    monkeypatch.setenv("XLA_CPU_DIRECT_CONVOLUTIONS", ours)
    return request.param


@pytest.fixture
def operators(monkeypatch):
    """The operators of the graph that is run at each call, but for views. A convolution is one, whoever computes it."""
    found: list[str] = []
    finish = constant_hoisting.finish

    def spy(graph):
        finish(graph)
        nodes = [node for node in graph.nodes if node.op == "call_function"]
        names = [node.target.__name__.split(".")[0] for node in nodes]
        found[:] = [re.sub("^(packed|winograd|pointwise|depthwise)_conv", "conv", name) for name in names]
        found[:] = [name for name in found if not name.endswith("_filters")]

    monkeypatch.setattr(constant_hoisting, "finish", spy)
    return found


def _tolerance() -> float:
    """Winograd's largest error is larger than the definition's, by up to ten times."""
    return 1e-4 if os.environ["XLA_CPU_WINOGRAD"] == "1" else 1e-5


def _check(model: nn.Module, x: torch.Tensor, tolerance: float | None = None) -> None:
    tolerance = _tolerance() if tolerance is None else tolerance
    check_inference(model, x, tolerance, tolerance, equal_nan=True)


class Shared(nn.Module):
    """What `combine` makes of the result of one convolution."""

    def __init__(self, combine):
        super().__init__()
        self.layer, self.combine = _convolution(), combine

    def forward(self, x):
        return self.combine(self.layer(x))


class Residual(nn.Module):
    """relu(left(x) + right(x)), in the order that is asked for."""

    def __init__(self, left: nn.Module, right: nn.Module, alpha: float = 1):
        super().__init__()
        self.left, self.right, self.alpha = left, right, alpha

    def forward(self, x):
        return torch.relu(torch.add(self.left(x), self.right(x), alpha=self.alpha))


def _convolution(channels: int = 64, **options) -> nn.Module:
    torch.manual_seed(0)
    return nn.Conv2d(64, channels, 3, padding=1, **options)


def _image(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(2, 64, 14, 14).to(dtype)


@pytest.mark.parametrize(
    "activation",
    [
        nn.ReLU(),
        nn.ReLU6(),
        nn.Hardtanh(-0.25, 0.5),
        nn.LeakyReLU(),
        nn.LeakyReLU(0.3),
        nn.ELU(0.7),
        nn.SiLU(),
        nn.Sigmoid(),
        nn.Tanh(),
        nn.Hardswish(),
        nn.Hardsigmoid(),
    ],
    ids=str,
)
def test_activations(operators, activation):
    _check(nn.Sequential(_convolution(), nn.BatchNorm2d(64), activation), _image())
    assert operators.count("convolution") == 1
    assert operators[-1] == "convolution"


@pytest.mark.parametrize("value", [0.5, float("nan"), float("-inf")])
@pytest.mark.parametrize("activation", [nn.ReLU(), nn.ReLU6(), nn.SiLU()], ids=str)
@pytest.mark.parametrize(
    "layer", [nn.Conv2d(64, 64, 1), nn.Conv2d(64, 64, 5, padding=2, groups=64, bias=False)], ids=["1x1", "depthwise"]
)
def test_other_filters(operators, layer, activation, value):
    x = _image().repeat(2, 1, 1, 1)  # enough for a call of oneDNN's
    x[0, 3, 4, 5] = value
    _check(nn.Sequential(Residual(layer, nn.Identity()), layer, nn.BatchNorm2d(64), activation), x)
    assert [name for name in operators if name not in ("fold_batch_norm", "getitem")] == ["convolution"] * 2


def test_activation_in_place(operators):
    _check(nn.Sequential(_convolution(), nn.ReLU(inplace=True), _convolution()), _image())
    assert operators == ["convolution"] * 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_activation_in_other_dtypes(operators, dtype):
    _check(nn.Sequential(_convolution(), nn.ReLU()).to(dtype), _image(dtype), 1e-2)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("activation", [nn.ReLU(), nn.ReLU6(), nn.LeakyReLU(0.3), nn.SiLU()], ids=str)
def test_what_is_no_number_goes_through_as_on_the_cpu(activation, value):
    x = _image()
    x[0, 3, 4, 5] = value
    _check(nn.Sequential(_convolution(), activation), x)


@pytest.mark.parametrize(
    "model",
    [
        Residual(_convolution(), nn.Identity()),
        Residual(nn.Identity(), _convolution()),
        Residual(_convolution(), _convolution()),
        Residual(nn.Sequential(_convolution(), nn.ReLU(), _convolution()), _convolution()),
        Residual(_convolution(), nn.Sequential(_convolution(), nn.ReLU(), _convolution())),
    ],
    ids=["image after", "image before", "both", "left is longer", "right is longer"],
)
def test_sums(operators, model):
    _check(model, _image())
    assert set(operators) == {"convolution"}


def test_sum_of_a_convolution_with_itself(operators):
    _check(Shared(lambda y: torch.relu(y + y)), _image())
    assert "add" in operators


@pytest.mark.parametrize(
    ("model", "dtype"),
    [
        (Residual(_convolution(1), nn.Identity()), torch.float32),
        (Residual(_convolution(), nn.AdaptiveAvgPool2d(1)), torch.float32),
        (Residual(_convolution(), nn.Identity(), alpha=0.5), torch.float32),
        (Residual(_convolution(), nn.Identity()), torch.bfloat16),
    ],
    ids=["broadcast", "with a broadcast", "scaled", "rounded first"],
)
def test_other_sums_are_left_alone(operators, model, dtype):
    _check(model.to(dtype), _image(dtype), None if dtype == torch.float32 else 2e-2)
    assert "add" in operators


def test_a_result_that_is_used_twice_is_left_alone(operators):
    _check(Shared(lambda y: torch.relu(y) - y), _image())
    assert "relu" in operators


class Layer(nn.Module):
    """A linear layer of rows in several dimensions, which torch takes apart, and what `combine` makes of its result."""

    def __init__(self, combine, bias: bool = True):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.combine = nn.Linear(64, 128, bias), combine

    def forward(self, x):
        return self.combine(self.layer(x))


def _rows(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(4, 60, 64).to(dtype)


def _products(names: list[str]) -> list[str]:
    return [name for name in names if name not in ("pack_matrix", "view", "t", "_unsafe_view")]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "activation",
    [nn.GELU(), nn.ReLU(), nn.ELU(0.7), nn.SiLU(), nn.Sequential(nn.Dropout(), nn.ReLU6())],
    ids=["gelu", "relu", "elu", "silu", "dropout and relu6"],
)
def test_activations_of_products(operators, activation, bias):
    _check(Layer(activation, bias), _rows())
    assert _products(operators) == ["packed_linear"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_activations_of_products_that_are_no_numbers(value):
    x = _rows()
    x[1, 2, 3] = value
    _check(Layer(nn.GELU()), x)


def test_approximate_gelu_is_left_to_xla(operators):
    _check(Layer(nn.GELU("tanh")), _rows())
    assert _products(operators) == ["packed_linear", "gelu"]


@pytest.mark.parametrize("computed", ["bfloat16", "float32"])
def test_activations_of_products_in_bfloat16(operators, monkeypatch, computed):
    monkeypatch.setenv("XLA_CPU_BFLOAT16_PRODUCTS", computed)
    _check(Layer(nn.GELU()).to(torch.bfloat16), _rows(torch.bfloat16), 2e-2)
    if packed.available("cpu", torch.bfloat16):
        assert _products([name for name in operators if name != "_to_copy"]) == ["packed_linear"]
        assert operators.count("_to_copy") == (computed == "float32")  # of the weight, once


class Block(nn.Module):
    """x plus two layers of it, as in a transformer, with the sum's operands in either order."""

    def __init__(self, first: bool):
        super().__init__()
        torch.manual_seed(0)
        self.wide, self.narrow, self.first = nn.Linear(64, 128), nn.Linear(128, 64), first

    def forward(self, x):
        y = self.narrow(nn.functional.gelu(self.wide(x)))
        return y + x if self.first else x + y


@pytest.mark.parametrize("first", [True, False])
def test_sums_of_products(operators, first):
    _check(Block(first), _rows())
    assert _products(operators) == ["packed_linear"] * 2


@pytest.mark.parametrize(
    "combine",
    [
        lambda y: y + y,
        lambda y: y + y.mean(1, keepdim=True),
        lambda y: torch.relu(y) - y,
        lambda y: torch.add(y, torch.ones_like(y), alpha=2),
        lambda y: torch.relu(y.transpose(1, 2)),
        lambda y: y + torch.arange(120.0, device=y.device).reshape(60, 2).repeat(1, 64),
        lambda y: y + torch.ones(4, 128, 60, device=y.device).transpose(1, 2),
        lambda y: torch.relu(y.view(4, 60, 2, 64)),
    ],
    ids=["itself", "broadcast", "twice", "scaled", "turned", "rows", "turned sum", "heads"],
)
def test_what_follows_products_otherwise(combine):
    _check(Layer(combine), _rows())


def test_kernels_have_a_thread_of_their_own():
    _check(nn.Sequential(_convolution(), nn.ReLU(), nn.MaxPool2d(2), _convolution()), _image())
    names = {path.read_text().strip() for path in _TASKS.glob("*/comm")}
    assert "aten_kernels" in names


def test_kernels_after_a_rest():
    model = nn.Sequential(_convolution(), nn.ReLU(), nn.MaxPool2d(2), _convolution())
    for rest in (0.0, 0.03, 0.15):  # none, one after which the workers are moved apart, one after which there are none
        time.sleep(rest)
        _check(model, _image())
    lines = [line for path in _TASKS.glob("*/status") for line in path.read_text().splitlines()]
    allowed = {line for line in lines if line.startswith("Cpus_allowed_list:")}
    assert len(allowed) == 1  # nobody is left where they were moved to


@pytest.mark.parametrize("between", [torch.sin, lambda x: x.flatten(1).sort().values.view_as(x)], ids=["sin", "sort"])
def test_what_the_program_computes_between_kernels(between):
    layers = nn.Sequential(Shared(between), _convolution()).eval()  # for half a millisecond, or for tens of them
    compiled = torch.compile(copy.deepcopy(layers).to("xla"), backend="openxla")
    x = torch.randn(2, 64, 64, 64)
    with torch.no_grad():
        expected = layers(x)
        for _ in range(4):  # how long it takes is known after the first
            torch.testing.assert_close(compiled(x.to("xla")).cpu(), expected, rtol=_tolerance(), atol=_tolerance())


class Joined(nn.Module):
    """Images side by side: results of kernels, or one in torch's order, as the model was given it."""

    def __init__(self, dim: int, with_input: bool, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.left, self.right, self.last = _convolution(), _convolution(), nn.Conv2d(64 * (1 + (dim == 1)), 8, 3)
        self.dim, self.with_input, self.dtype = dim, with_input, dtype

    def forward(self, x):
        right = x.to(self.dtype) if self.with_input else self.right(x)
        return self.last(torch.cat([torch.relu(self.left(x)), right], self.dim).float())


@pytest.mark.parametrize("with_input", [False, True])
@pytest.mark.parametrize("dim", [0, 1, 3, -2])
def test_images_side_by_side(operators, dim, with_input):
    _check(Joined(dim, with_input), _image())
    assert operators.count("cat") == 1


def test_images_of_several_dtypes_side_by_side():
    _check(Joined(1, with_input=True, dtype=torch.float64), _image())


@pytest.mark.parametrize("value", [1.0, float("nan"), float("-inf")])
@pytest.mark.parametrize(
    "pool",
    [nn.MaxPool2d(3, 2, 1), nn.MaxPool2d((3, 2), (1, 2), (1, 0)), nn.MaxPool2d(3, 2, 1, ceil_mode=True)],
    ids=["both", "one", "ceil"],
)
def test_padded_pools(pool, value):
    x = _image()
    x[0, 3, 4, 5] = value
    _check(nn.Sequential(_convolution(), nn.ReLU(), pool), x)
    _check(nn.Sequential(pool, _convolution()), x)


class OfParameters(nn.Module):
    """A small parameter, which shares a buffer with another, as an operand of kernels that read parts of one."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.last = _convolution(), nn.Linear(256, 512)
        self.added, self.turned = nn.Parameter(torch.randn(1, 64, 14, 14)), nn.Parameter(torch.randn(33, 256) / 16)

    def forward(self, x):
        image = torch.relu(self.layer(x) + self.added)
        return image, self.last(self.turned) + x.mean()


def test_small_parameters_as_operands_of_kernels():
    model = OfParameters().eval()
    compiled = torch.compile(copy.deepcopy(model).to("xla"), backend="openxla")
    x = _image()[:1]
    with torch.no_grad():
        found = [result.cpu() for result in compiled(x.to("xla"))]
        torch.testing.assert_close(found, list(model(x)), rtol=_tolerance(), atol=_tolerance())
