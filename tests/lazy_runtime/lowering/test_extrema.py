"""Gradients of what looks for a greatest or least element, where XLA would round that element in several ways."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import lazy_runtime
from lazy_runtime.compilation import lower
from lazy_runtime.lowering import extrema

INFINITE = float("inf")


def _affine(x, w, b):
    return x * w + b


def _layer_norm(x, w, b):
    return F.layer_norm(x, (x.shape[-1],), w, b)


def _normalized(x, w, b):
    return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 0.1) * w + b


LEADING = {"affine": _affine, "layer norm": _layer_norm, "normalized": _normalized}
EXTREMA = {
    "amax": lambda y: y.amax(-1),
    "amin of abs": lambda y: y.abs().amin(-1),
    "max": lambda y: y.max(),
    "aminmax": lambda y: torch.sub(*y.aminmax()),
    "norm": lambda y: torch.linalg.vector_norm(y, INFINITE, dim=-1),
    "norm of all": lambda y: y.norm(p=INFINITE),
    "matrix norm": lambda y: torch.linalg.matrix_norm(y, INFINITE),
}


@pytest.fixture(params=LEADING)
def leading(request):
    return LEADING[request.param]


@pytest.mark.parametrize("extremum", EXTREMA.values(), ids=EXTREMA)
def test_gradients(leading, extremum):
    torch.manual_seed(0)
    for shape in ((3, 5, 7), (2, 64, 33)):
        inputs = [torch.randn(size) for size in (shape, shape[-1:], shape[-1:])]

        def gradients(device, shape=shape, inputs=inputs):
            x, w, b = (each.to(device).requires_grad_() for each in inputs)
            return torch.autograd.grad(extremum(leading(x, w, b)).square().sum(), (x, w, b))

        for mine, expected in zip(gradients("xla"), gradients("cpu"), strict=True):
            torch.testing.assert_close(mine.cpu(), expected, rtol=1e-3, atol=1e-3)


def _searched(function):
    """What is put into memory in the lazy graph of a result."""
    found = []
    original = lower.extrema.searched
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lower.extrema, "searched", lambda graph: found.append(original(graph)) or found[-1])
        function()
        lazy_runtime.sync()
    return [slots for each in found for slots in each.values()]


def test_only_what_is_compared_is_put_into_memory():
    x = torch.randn(4, 5, device="xla")
    lazy_runtime.sync()
    kept = []
    assert _searched(lambda: kept.append((x * 3).amax(-1))) == [[]]  # read once
    assert _searched(lambda: kept.append((lambda y: (y - y.amax(-1, keepdim=True)).exp().sum(-1))(x * 4))) == [[]]
    (slots,) = _searched(lambda: kept.append((lambda y: (y == y.amax(-1, keepdim=True)).sum(-1))(x * 5)))
    assert len(slots) == 1
    assert _searched(lambda: kept.append(torch.linalg.vector_norm(x * 6))) == []
    assert _searched(lambda: kept.append(x.amax(-1) == x[:, 0])) == [[]]  # a buffer has one value already


def test_a_value_in_memory_is_the_same_one():
    x = torch.randn(3, 4).numpy()
    import jax

    assert (jax.jit(extrema.fixed)(x) == x).all()
    assert extrema.fixed("what is no array") == "what is no array"
