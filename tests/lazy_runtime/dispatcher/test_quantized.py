"""Quantized tensors on xla, which do not exist: errors that say so, where, and what to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.ao import quantization

QUANTIZING: list[Callable[[torch.Tensor], object]] = [
    lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),  # the line
    lambda x: torch.quantize_per_tensor(x, torch.tensor(0.1), torch.tensor(0), torch.qint8),  # the line
    lambda x: torch.quantize_per_tensor([x], torch.ones(1), torch.zeros(1), torch.qint8),  # the line
    lambda x: torch.quantize_per_channel(x, torch.ones(4), torch.zeros(4), 0, torch.qint8),  # the line
    lambda x: torch.quantize_per_tensor_dynamic(x, torch.qint8, False),  # the line
]


# torch deprecates its quantized tensors
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("quantize", QUANTIZING)
def test_what_quantizes(quantize: Callable[[torch.Tensor], object], eager: bool):
    from lazy_runtime.torch_xla.experimental import eager_mode

    eager_mode(eager)
    with pytest.raises(NotImplementedError, match="cannot be on an xla device: quantize on the CPU") as raised:
        quantize(torch.ones(4, 8, device="xla"))
    assert f'File "{__file__}", line {quantize.__code__.co_firstlineno}' in str(raised.value)


def refused(function: Callable[..., object], *args: object) -> str:
    """The message of what is refused, which has to name the function's line."""
    with pytest.raises(NotImplementedError, match="cannot be on an xla device") as raised:
        function(*args)
    assert f'called at File "{__file__}", line {function.__code__.co_firstlineno}' in str(raised.value)
    return str(raised.value)


MAKING: list[Callable[[torch.Tensor], object]] = [
    lambda x: torch._empty_affine_quantized([2], scale=0.1, zero_point=0, dtype=torch.quint8, device="xla"),
    lambda x: torch.empty_quantized([2], quantized(), device="xla"),
    lambda x: torch.empty_like(quantized(), device="xla"),
    lambda x: torch.empty(2, dtype=torch.qint8, device="xla"),
    lambda x: torch.empty_strided((2, 3), (3, 1), dtype=torch.qint32, device="xla"),
    lambda x: torch.zeros(2, dtype=torch.quint8, device="xla"),
    lambda x: torch.arange(2, dtype=torch.quint8, device="xla"),
    lambda x: torch.empty_like(x, dtype=torch.qint8),
    lambda x: x.new_zeros(2, dtype=torch.qint8),
    lambda x: x.to(torch.qint8),
    lambda x: x.cpu().to("xla", torch.qint8),
    lambda x: x.view(torch.qint32),
    lambda x: torch.compile(lambda y: y.to(torch.qint8), backend="openxla")(x),
    lambda x: torch._make_per_tensor_quantized_tensor(x.to(torch.int8), 0.1, 0),
]


def quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.ones(4, 8), 0.1, 0, torch.quint8)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", MAKING)
def test_what_makes_quantized_tensors(make: Callable[[torch.Tensor], object]):
    refused(make, torch.ones(4, 8, device="xla"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "take",
    [
        lambda x: x.int_repr(),
        lambda x: x.q_scale(),
        lambda x: torch.ops.quantized.linear_prepack(x, None),
        lambda x: torch.ops.quantized.linear(x, torch.ao.nn.quantized.Linear(8, 4)._packed_params._packed_params, 1, 0),
    ],
)
def test_what_takes_quantized_tensors_alone(take: Callable[[torch.Tensor], object]):
    refused(take, torch.ones(4, 8, device="xla"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "move",
    [
        lambda q: q.to("xla"),
        lambda q: q.to("xla:0", copy=True),
        lambda q: torch.as_tensor(q, device="xla"),
        lambda q: torch.nn.ParameterDict({"q": torch.nn.Parameter(q, requires_grad=False)}).to("xla"),
    ],
)
def test_moves(move: Callable[[torch.Tensor], object]):
    per_channel = torch.quantize_per_channel(torch.ones(4, 8), torch.ones(4), torch.zeros(4), 0, torch.qint8)
    for q in (quantized(), per_channel):
        message = refused(move, q)
        assert "x.dequantize()" in message
        assert "x.int_repr()" in message
        assert q.to("cpu", copy=True).equal(q)
    assert torch.equal(quantized().int_repr().to("xla").cpu(), quantized().int_repr())
    assert torch.equal(quantized().dequantize().to("xla").cpu(), quantized().dequantize())


def test_a_move_before_any_use_of_xla(forked_process):
    forked_process(
        """
        import warnings
        import torch
        warnings.simplefilter("ignore")
        try:
            torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8).to("xla")
        except NotImplementedError as error:
            assert "a quantized tensor cannot be on an xla device" in str(error), error
        else:
            raise AssertionError("it has stayed on the CPU")
        """
    )


# ---- what stands for them: integers and scales, and fake quantization

I8 = (-128, 127, torch.int8)
DECOMPOSED: dict[str, list[object]] = {
    "quantize_per_tensor.default": [0.1, 3, *I8],
    "quantize_per_tensor.tensor": [torch.tensor(0.1), torch.tensor(3), *I8],
    "quantize_per_channel.default": [torch.rand(4) + 0.05, torch.arange(4), 0, *I8],
    "quantize_per_token.default": [torch.rand(4, 1) + 0.05, torch.ones(4, 1), *I8],
    "quantize_per_channel_group.default": [torch.rand(4, 2) + 0.05, torch.zeros(4, 2), *I8, 4],
    "choose_qparams.tensor": [-128, 127, 1e-6, torch.int8],
    "choose_qparams_symmetric.tensor": [-128, 127, 1e-6, torch.int8],
    "choose_qparams_per_token_asymmetric.default": [torch.int8],
    "fake_quant_per_channel.default": [torch.rand(4) + 0.05, torch.arange(4), 0, -128, 127],
    "dequantize_per_tensor.default": [0.1, 3, *I8],
    "dequantize_per_tensor.tensor": [torch.tensor(0.1), torch.tensor(3), *I8],
    "dequantize_per_channel.default": [torch.rand(4), torch.arange(4), 0, *I8],
    "dequantize_per_channel_group.default": [torch.rand(4, 2), torch.zeros(4, 2), *I8, 4, torch.float32],
    "dequantize_per_token.default": [torch.rand(4, 1), torch.ones(4, 1), *I8, torch.float32],
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", DECOMPOSED)
def test_decomposed_operators(name: str, compiled: bool):
    from torch.ao.quantization.fx import _decomposed  # noqa: F401  defines the operators

    packet, overload = name.split(".")
    operator = getattr(getattr(torch.ops.quantized_decomposed, packet), overload)
    x = torch.randn(4, 8) * 5
    args = [x.to(torch.int8) if packet.startswith("dequantize") else x, *DECOMPOSED[name]]
    moved = [arg.to("xla") if isinstance(arg, torch.Tensor) else arg for arg in args]
    function = operator
    if compiled:
        torch._dynamo.reset()
        function = torch.compile(lambda *args: operator(*args), backend="openxla", fullgraph=True)
    torch.testing.assert_close(
        torch.utils._pytree.tree_map(lambda y: y.cpu(), function(*moved)), operator(*args), rtol=0, atol=0
    )


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_fake_quantization_compiles(device: str):
    scale, point = torch.tensor([0.1]), torch.tensor([1.0])
    x = torch.randn(4, 8)
    for function in (
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127),
        lambda x: torch.fake_quantize_per_tensor_affine(x, scale.to(x.device), point.int().to(x.device), -128, 127),
        lambda x: torch._fake_quantize_learnable_per_tensor_affine(x, scale.to(x.device), point.to(x.device), -8, 7),
    ):
        torch._dynamo.reset()
        compiled = torch.compile(function, backend="openxla", fullgraph=True)
        torch.testing.assert_close(compiled(x.to(device)).cpu(), function(x), rtol=0, atol=0)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.quantize, self.dequantize = quantization.QuantStub(), quantization.DeQuantStub()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dequantize(self.layers(self.quantize(x)))


def net(config: quantization.QConfig, training: bool) -> torch.nn.Module:
    torch.manual_seed(0)
    made = Net().train(training)
    made.qconfig = config
    return quantization.prepare_qat(made) if training else quantization.prepare(made)


def batches() -> list[torch.Tensor]:
    return list(torch.randn(3, 16, 8, generator=torch.Generator().manual_seed(1)))


def integers(model: torch.nn.Module) -> list[torch.Tensor]:
    """The integers, the scales and the zero points of a converted model."""
    weights = [layer.weight() for layer in model.modules() if isinstance(layer, torch.ao.nn.quantized.Linear)]
    assert len(weights) == 2
    found = [weight.int_repr() for weight in weights]
    found += [weight.q_per_channel_scales() for weight in weights if weight.qscheme() == torch.per_channel_affine]
    return [*found, *(x for x in model.state_dict().values() if isinstance(x, torch.Tensor))]


@pytest.mark.filterwarnings("ignore")
def test_calibration_on_xla():
    config = quantization.get_default_qconfig("x86")
    models = {device: net(config, training=False).to(device) for device in ("cpu", "xla")}
    for x in batches():
        for device, model in models.items():
            model(x.to(device))
    converted = [quantization.convert(model.cpu()) for model in models.values()]
    x = batches()[0]
    assert torch.equal(converted[0](x), converted[1](x))
    assert converted[0](x).unique().numel() > 4


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_training_on_xla(fused: bool, compiled: bool):
    config = quantization.get_default_qat_qconfig("x86")
    if not fused:
        # not symmetric: the largest weight lies between two integers there, and the last bit of the scale decides
        affine = {"observer": quantization.MovingAverageMinMaxObserver, "qscheme": torch.per_tensor_affine}
        weights = quantization.FakeQuantize.with_args(quant_min=-128, quant_max=127, dtype=torch.qint8, **affine)
        config = quantization.QConfig(quantization.default_fake_quant, weights)
    models = {device: net(config, training=True).to(device) for device in ("cpu", "xla")}
    for device, model in models.items():
        function = torch.compile(model, backend="openxla") if compiled else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x in batches():
            optimizer.zero_grad()
            function(x.to(device)).square().mean().backward()
            optimizer.step()
    converted = [quantization.convert(model.cpu().eval()) for model in models.values()]
    for ours, torchs in zip(*map(integers, reversed(converted)), strict=True):
        torch.testing.assert_close(ours, torchs, rtol=1e-5, atol=1e-6)
    x = batches()[0]
    torch.testing.assert_close(converted[1](x), converted[0](x), rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_conversion_on_xla():
    # not the default observers: theirs search a histogram, with some thousand reads, before anything is converted
    config = quantization.QConfig(quantization.default_observer, quantization.default_weight_observer)
    model = net(config, training=False).to("xla")
    model(batches()[0].to("xla"))
    refused(lambda: quantization.convert(model))
    refused(lambda: quantization.quantize_dynamic(torch.nn.Sequential(torch.nn.Linear(8, 4)).to("xla")))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_a_dynamically_quantized_model(device: str):
    model = quantization.quantize_dynamic(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)))
    x = batches()[0]
    expected = model(x)
    model.to(device)
    assert torch.equal(model(x.to(device)).cpu(), expected)
    assert torch.equal(torch.compile(model, backend="openxla")(x.to(device)).cpu(), expected)


@pytest.mark.filterwarnings("ignore")
def test_a_statically_quantized_model():
    model = net(quantization.get_default_qconfig("x86"), training=False)
    x = batches()[0]
    model(x)
    model = quantization.convert(model)
    assert torch.equal(torch.compile(model, backend="openxla")(x), model(x))
    with pytest.raises(NotImplementedError, match=f'{__file__}", line .*, in forward'):
        model.to("xla")(x.to("xla"))
