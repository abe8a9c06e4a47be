"""Operators that arrive at the backend's key: of tensors in subclasses, in torch's modes, and of Dynamo's stand-ins."""

from __future__ import annotations

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

from lazy_runtime.compat.torch import is_functional_tensor

# operators without a lowering or a meta kernel, whose looks Dynamo asks of tensors of zeros
WITHOUT_META = {
    "_masked_softmax": lambda x: torch._masked_softmax(x, x > 0.5, -1),
    "dequantize": lambda x: x.dequantize() + 1,
    "learnable": lambda x: torch._fake_quantize_learnable_per_tensor_affine(x, x[0, :1], x[0, :1] * 0, -128, 127),
    "_compute_linear_combination": lambda x: torch._compute_linear_combination(x, x[:2, :4]),
}


@pytest.mark.parametrize("name", WITHOUT_META)
def test_operators_without_a_meta_kernel_compile(name):
    function = WITHOUT_META[name]
    x = torch.rand(4, 8) + 0.1
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="openxla", fullgraph=True)
    torch.testing.assert_close(compiled(x.to("xla")).cpu(), function(x))


class Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.name())
        with torch._C._DisableTorchDispatch():
            return func(*args, **(kwargs or {}))


def test_a_mode_that_passes_over_subclasses():
    x = torch.rand(4, 8) + 0.1
    on_xla = x.to("xla")
    with Seen() as seen:
        found = [on_xla.dequantize(), on_xla.add(1), torch._masked_softmax(on_xla, on_xla > 0.5, -1)]
    assert "aten::_masked_softmax" in seen.names
    for ours, torchs in zip(found, [x, x + 1, torch._masked_softmax(x, x > 0.5, -1)], strict=True):
        torch.testing.assert_close(ours.cpu(), torchs)


def test_what_somebody_elses_dispatch_makes_is_a_users_tensor():
    held = torch.nn.Parameter(TwoTensor(torch.ones(3), torch.zeros(3))).to("xla")
    assert is_functional_tensor(held.a)
    with torch.no_grad():
        held.add_(2)
        held[1:].mul_(3)
    assert held.a.tolist() == [3, 9, 9]
    assert held.b.tolist() == [2, 6, 6]


def test_a_tensor_made_within_a_mode_is_a_users_tensor():
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with Mode():
        made = [torch.zeros(3, device="xla"), torch.tensor([0.0, 0.0, 0.0]).to("xla")]
    for x in made:
        assert is_functional_tensor(x)
        x[1:] += 1
        assert x.tolist() == [0, 1, 1]
