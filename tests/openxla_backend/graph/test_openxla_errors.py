"""What goes wrong is said with the operator and the user's line."""

from pathlib import Path

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed
from torch._higher_order_ops.strict_mode import strict_mode

from tests.openxla_backend.helpers import compiled

library = torch.library.Library("openxla_tests", "DEF")
library.define("nameless(Tensor x) -> Tensor")
library.impl("nameless", lambda x: x.clone(), "CPU")
library.impl("nameless", lambda x: torch.empty_like(x), "Meta")


def test_operator_without_a_lowering_in_strict_mode(monkeypatch):
    monkeypatch.setenv("XLA_STRICT_FALLBACK", "1")

    def f(x):
        y = x + 1
        return torch.ops.openxla_tests.nameless(y)  # the line

    with pytest.raises(BackendCompilerFailed) as raised:
        compiled(f)(torch.randn(3))
    message = str(raised.value)
    assert message.startswith("backend='openxla' raised:\nNotImplementedError: openxla_tests::nameless has no lowering")
    assert Path(__file__).name in message
    assert "return torch.ops.openxla_tests.nameless(y)  # the line" in message


def test_suppressed_errors_fall_back_to_eager():
    x = torch.randn(3)
    with torch._dynamo.config.patch(suppress_errors=True):
        assert torch.equal(compiled(lambda x: torch.ops.openxla_tests.nameless(x) + 1)(x), x + 1)


def test_higher_order_operator():
    def f(x):
        return strict_mode(lambda x: x + 1, (x,))

    with pytest.raises(BackendCompilerFailed, match=r"higher-order operator strict_mode is not supp.*\n.*in f"):
        compiled(f)(torch.randn(3))


@pytest.mark.parametrize(
    "options", [{"options": {"speed": 11}}, {"options": {"freezing": 1}}, {"mode": "max-autotune"}]
)
def test_options(options):
    (name,) = options
    with pytest.raises(BackendCompilerFailed, match=f"TypeError: .*takes no mode and no options but .*, got {name}="):
        compiled(lambda x: x + 1, **options)(torch.randn(3))


def test_shape_mismatch_is_torchs():
    with pytest.raises(Exception, match=r"size|shape") as raised:
        compiled(lambda x, y: x @ y)(torch.randn(3, 4), torch.randn(3, 4))
    assert "x @ y" in str(raised.value)


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_quantized_tensors_are_refused_by_name(device):
    def f(x):
        return torch.quantize_per_tensor(x, 0.1, 0, torch.quint8).dequantize() + 1  # the line

    with pytest.raises(Exception, match="quantize") as raised:  # torch refuses it on xla itself
        compiled(f)(torch.rand(3, device=device))
    if device == "cpu":
        assert isinstance(raised.value, BackendCompilerFailed)
        message = str(raised.value)
        assert "NotImplementedError: aten::quantize_per_tensor gives a quantized tensor" in message
        assert "torch.compiler.disable" in message
        assert "# the line" in message


@pytest.mark.filterwarnings("ignore")  # torch deprecates its quantized tensors
def test_in_generated_code_the_call_is_said():
    class Root(torch.nn.Module):
        def forward(self, x):
            return torch.quantize_per_tensor(x, 0.1, 0, torch.quint8).dequantize()

    module = compiled(torch.fx.symbolic_trace(Root()))
    with pytest.raises(BackendCompilerFailed, match="aten::quantize_per_tensor gives a quantized tensor") as raised:
        module(torch.rand(3))
    line = test_in_generated_code_the_call_is_said.__code__.co_firstlineno + 8
    assert f'called at File "{__file__}", line {line}, in test_in_generated_code' in str(raised.value)


def test_a_kernel_that_raises_is_said_with_operator_and_line():
    library.define("raises(Tensor x) -> Tensor")
    library.impl("raises", lambda x: torch.linalg.cholesky(x), "CPU")
    library.impl("raises", lambda x: torch.empty_like(x), "Meta")

    def f(x):
        return torch.ops.openxla_tests.raises(x + 1)  # the line

    for device in ("cpu", "xla"):
        with pytest.raises(RuntimeError, match="not positive-definite") as raised:
            compiled(f)(-torch.ones(3, 3).to(device)).cpu()
        assert "openxla_tests::raises" in str(raised.value)
        assert "# the line" in str(raised.value)
