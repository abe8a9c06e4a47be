"""Which pending nodes are computed by torch's CPU kernels, and what they give."""

from __future__ import annotations

import pytest
import torch

import lazy_runtime
from lazy_runtime.execution.host_evaluation import MOST_ELEMENTS, HostEvaluation, is_small
from lazy_runtime.platform import xla_devices
from lazy_runtime.tensor import xla_tensor


def recorded(function, *tensors: torch.Tensor):
    """A value that grows, and the pending node of a function of it."""
    lazy_runtime.sync()
    result = function(*tensors)
    (node,) = xla_devices.get(0).pending
    return node, result


@pytest.mark.parametrize(
    ("function", "grows"),
    [
        (lambda x: x + 1, True),
        (lambda x: x > 2, True),
        (lambda x: x.cumsum(1), True),
        (lambda x: x.sum(1), False),
        (lambda x: torch.nn.functional.pad(x, (0, 3)), False),
    ],
)
def test_a_node_is_computed_as_torch_computes_it(function, grows):
    x = torch.arange(6).view(2, 3)
    node, result = recorded(function, x.to("xla"))
    device = xla_devices.get(0)
    host = HostEvaluation(device, {id(value) for value in node.inputs})
    assert host.take(node)
    host.fetch()
    device.pending.clear()
    computed, growing = host.bind(())
    inner = xla_tensor.unwrap(result)
    assert computed == {id(inner.handle.value)}
    assert [owner() for owner in growing] == ([inner.handle] if grows else [])
    expected = function(x)
    assert result.dtype == expected.dtype
    assert torch.equal(result.cpu(), expected)


def test_a_node_of_values_that_do_not_grow_is_left_to_a_program():
    node, result = recorded(lambda x: x + 1, torch.arange(3).to("xla"))
    assert not HostEvaluation(xla_devices.get(0), set()).take(node)
    assert result.tolist() == [1, 2, 3]


def test_a_truth_value_is_computed_where_a_loop_has_a_turn():
    node, result = recorded(lambda: torch.full((2,), True, device="xla"))
    device = xla_devices.get(0)
    assert not HostEvaluation(device, set()).take(node)
    host = HostEvaluation(device, set(), is_turn=True)
    assert host.take(node)
    device.pending.clear()
    host.bind(())
    assert result.tolist() == [True, True]


@pytest.mark.parametrize(
    "function",
    [
        lambda: torch.ones(2, device="xla") * 2,
        lambda: torch.ones(MOST_ELEMENTS + 1, dtype=torch.long, device="xla"),
        lambda: torch.randint(3, (2,), device="xla"),
        lambda: torch.ones(2, 2, dtype=torch.long, device="xla").max(1).values,
        lambda: torch.bincount(torch.arange(3, device="xla")),
        lambda: torch.arange(6, device="xla").clone().as_strided((2,), (1,)),
    ],
)
def test_what_is_no_small_tensor_of_integers_is_not_small(function):
    lazy_runtime.sync()
    result = function()
    assert not is_small(xla_devices.get(0).pending[-1].call)
    assert result.numel()
