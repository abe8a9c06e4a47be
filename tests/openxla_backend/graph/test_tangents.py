"""The gradients of outputs whose elements share memory, which torch's own compilers mix up."""

from __future__ import annotations

import pytest
import torch

from openxla_backend.graph import tangents
from tests.openxla_backend.helpers import compiled

FUNCTIONS = {
    "windows": lambda x: (x * 2).unfold(0, 3, 1),
    "windows of rows": lambda x: (x.reshape(3, 4) + 1).unfold(1, 2, 1),
    "strides that meet": lambda x: (x * x).as_strided((3, 4), (2, 1)),
    "an expansion": lambda x: (x * 3).reshape(12, 1).expand(12, 4),
    "windows apart": lambda x: (x * 2).unfold(0, 3, 3),
}


@pytest.mark.parametrize("device", ["cpu", "xla"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_eagers(name, device):
    function = FUNCTIONS[name]

    def gradient(call, device):
        torch.manual_seed(0)
        x = torch.randn(12).to(device).requires_grad_()
        y = call(x)
        y.backward(torch.arange(float(y.numel())).reshape(y.shape).to(device))
        return x.grad.cpu()

    torch.testing.assert_close(gradient(compiled(function), device), gradient(function, "cpu"))


@pytest.mark.parametrize(
    ("size", "stride", "expected"),
    [
        ((2, 3), (3, 1), True),
        ((2, 3), (1, 2), True),
        ((2, 3), (4, 1), True),
        ((2, 3), (2, 1), False),
        ((2, 1), (0, 0), False),
        ((1, 3), (0, 1), True),
        ((0, 3), (1, 1), True),
        ((), (), True),
    ],
)
def test_strides_say_whether_elements_share_memory(size, stride, expected):
    assert tangents._are_apart(size, stride) is expected


def test_a_graph_without_notes_is_left_alone():
    tangents.lay_out_apart(None)
