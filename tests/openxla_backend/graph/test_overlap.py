"""Inputs that share memory at one call and not at another."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from tests.openxla_backend.helpers import assert_same, compiled


def write_first(x, y):
    x.mul_(2).add_(1)
    return x + y


def write_second(x, y):
    y.t().mul_(2)
    return x - y


def write_third(x, y, z=None):
    (y if z is None else z).add_(1)
    return x * y


def apart(base):
    return base[:3].clone(), base[1:].clone()


def overlapping(base):
    return base[:3], base[1:]


def the_same_rows(base):
    return base[1:], base[1:]


def disjoint(base):
    return base[:1], base[3:]


ORDERS = {
    "apart, then overlapping": (apart, overlapping, apart),
    "overlapping, then apart": (overlapping, apart, overlapping),
    "apart, then the same": (apart, the_same_rows),
    "disjoint, then overlapping": (disjoint, overlapping, disjoint, apart),
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("function", [write_first, write_second, write_third])
def test_what_is_written_is_read_where_inputs_overlap(function, order, device):
    fast = compiled(function)
    for views in order:
        expected = torch.arange(12.0).view(4, 3)
        base = expected.clone().to(device)
        assert_same(fast(*views(base)), function(*views(expected)), device)
        assert_same(base, expected, device)


def test_with_a_third_input_that_is_apart(device):
    fast = compiled(write_third)
    for views in (apart, overlapping):
        expected = torch.arange(12.0).view(4, 3)
        base = expected.clone().to(device)
        x, z = views(expected)
        theirs = write_third(x, torch.ones(3, 3), z)
        x, z = views(base)
        assert_same(fast(x, torch.ones(3, 3).to(device), z), theirs, device)
        assert_same(base, expected, device)


def test_of_symbolic_sizes(device):
    fast = compiled(write_first, dynamic=True)
    for views in (apart, overlapping):
        expected = torch.arange(15.0).view(5, 3)
        base = expected.clone().to(device)
        x, y = views(base)
        x, y = x[:3], y[:3]
        p, q = views(expected)
        assert_same(fast(x, y), write_first(p[:3], q[:3]), device)
        assert_same(base, expected, device)


@pytest.mark.parametrize("function", [write_first, torch.add])
def test_other_tensors_that_lie_alike_are_not_compiled_for(function, device):
    counter = CompileCounterWithBackend("openxla")
    fast = torch.compile(function, backend=counter)
    for _ in range(3):
        fast(*apart(torch.arange(12.0, device=device).view(4, 3)))
    assert counter.frame_count == 1


def test_what_writes_to_nothing_is_compiled_once(device):
    counter = CompileCounterWithBackend("openxla")
    fast = torch.compile(torch.add, backend=counter)
    for views in (apart, overlapping, the_same_rows):
        base = torch.arange(12.0).view(4, 3)
        assert_same(fast(*views(base.to(device))), torch.add(*views(base)), device)
    assert counter.frame_count <= 2  # one object for both arguments is another function to Dynamo
