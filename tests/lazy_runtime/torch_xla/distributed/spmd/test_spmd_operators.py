"""Operators on sharded tensors give torch's numbers: by XLA's own lowerings, or whole on each device."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lazy_runtime
from lazy_runtime.compilation import compiler
from lazy_runtime.lowering import aten_bridge
from lazy_runtime.ops import registry
from lazy_runtime.recording import decompose, dispatch, fallback
from lazy_runtime.torch_xla.distributed import spmd as xs

aten = torch.ops.aten
F = nn.functional

FUNCTIONS = {
    "conv": lambda x: F.conv2d(x, filters(x), stride=2, padding=1),
    "conv of groups": lambda x: F.conv2d(x, filters(x)[:, :2].repeat(3, 1, 1, 1)[:6], groups=3),
    "transposed conv": lambda x: F.conv_transpose2d(x, filters(x).transpose(0, 1).contiguous(), stride=2),
    "max pool": lambda x: F.max_pool2d(x, 3, 2, 1),
    "adaptive pool": lambda x: F.adaptive_avg_pool2d(x, 3),
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True),
    "upsampling": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "indexing": lambda x: x[:, :, torch.tensor([5, 0, 5], device=x.device)],
    "sort": lambda x: x.sort(2)[0],
    "cumsum": lambda x: x.cumsum(3),
    "slices": lambda x: torch.cat([x[:, :, 1:6:2], x.flip(2)[:, :, :3]], 2),
    "reshape": lambda x: x.reshape(-1, 3, 16).transpose(0, 2),
    "triangular": lambda x: torch.linalg.qr(x[0, 0] + 9 * torch.eye(8, device=x.device))[1].abs(),
    "logcumsumexp": lambda x: x.logcumsumexp(2),
}


def filters(x: torch.Tensor) -> torch.Tensor:
    return torch.linspace(-1, 1, 4 * 6 * 9).sin().reshape(4, 6, 3, 3).to(x.device)


def image() -> torch.Tensor:
    return torch.randn(4, 6, 8, 8, generator=torch.Generator().manual_seed(3))


def values_and_gradients(name: str) -> None:
    function = FUNCTIONS[name]
    plain = image().requires_grad_()
    expected = function(plain)
    weights = torch.linspace(0, 9, expected.numel()).cos().reshape(expected.shape)
    (expected * weights).sum().backward()
    x = image().to("xla")
    xs.mark_sharding(x, xs.Mesh(range(4), (2, 2)), (None, None, 0, 1))
    x.requires_grad_()
    compiler.clear()
    result = function(x)
    (result * weights.to("xla")).sum().backward()
    lazy_runtime.sync()
    torch.testing.assert_close(result.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(x.grad.cpu(), plain.grad, rtol=1e-3, atol=1e-4)
    for program in compiler._executables.values():
        assert "aten_call" not in program.compiled.as_text()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients(spmd, name):
    spmd(values_and_gradients, name)


def what_only_torch_computes(road: str) -> None:
    built = aten_bridge.is_built
    overloads = aten.flip.default, aten.cumsum.default
    lowerings = {overload: registry.table.pop(overload) for overload in overloads}
    decompositions = {overload: decompose.decomposition_table.pop(overload, None) for overload in overloads}
    dispatch._handlers.update(dict.fromkeys(overloads, fallback.call))
    fallback._operator.cache_clear()
    if road == "callback":
        aten_bridge.is_built = lambda: False
    try:
        x = image().to("xla")
        xs.mark_sharding(x, xs.Mesh(range(4), (2, 2)), (0, None, 1, None))
        found = (x * 2).flip(0, 2) + 1
        long = (x * 10).long().cumsum(0)
        xs.mark_sharding(long, xs.Mesh(range(4), (4,)), (0, None, None, None))
        torch.testing.assert_close(found.cpu(), (image() * 2).flip(0, 2) + 1, rtol=0, atol=0)
        assert torch.equal(long.cpu(), (image() * 10).long().cumsum(0))
    finally:
        aten_bridge.is_built = built
        registry.table.update(lowerings)
        decompose.decomposition_table.update({k: found for k, found in decompositions.items() if found is not None})
        for overload in overloads:
            del dispatch._handlers[overload]
        fallback._operator.cache_clear()


@pytest.mark.parametrize("road", ["bridge", "callback"])
def test_what_only_torch_computes(spmd, road):
    spmd(what_only_torch_computes, road)


def draws() -> list[float]:
    torch.manual_seed(11)
    x = torch.ones(8, 6, device="xla")
    if lazy_runtime.runtime.is_spmd():
        xs.mark_sharding(x, xs.Mesh(range(4), (2, 2)), (0, 1))
    dropped = F.dropout(x, 0.4)
    noise = torch.randn_like(x)
    some = torch.rand(8, 6, device="xla") + torch.randperm(8, device="xla")[:, None]
    return [*dropped.flatten().tolist(), *noise.flatten().tolist(), *some.flatten().tolist()]


def test_random_numbers_are_those_of_one_device(spmd):
    assert spmd(draws) == draws()
