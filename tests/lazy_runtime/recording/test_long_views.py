"""Views of views of views, written to in a loop: what a write records does not grow with those before it."""

from __future__ import annotations

import collections

import pytest
import torch

from lazy_runtime.platform import xla_devices
from lazy_runtime.recording import dispatch


def views(x):
    x = x.view(24) if x.dim() == 2 else x.view(4, 6)
    return x.add_(1)


def reshapes(x):
    x = x.reshape(2, 12) if x.shape[0] == 4 else x.reshape(4, 6)
    return x.mul_(3) % 1021


def detached(x):
    return x.detach().add_(1)


def detached_part(x):
    x = x.detach()
    x[0] += 2
    return x


def parameters(x):
    x = torch.nn.Parameter(x.data)
    x.data.add_(1)
    return x


def data(x):
    x.data = x.data[:]
    return x.add_(1)


def transposed(x):
    x.t_()
    return x.add_(1)


def transposed_only(x):
    return x.t_()


def unsqueezed(x):
    x.unsqueeze_(0).add_(1)
    return x.squeeze_(0).mul_(2).remainder_(1021)


def turned(x):
    x = x.flip(0) if x.dim() == 3 else x.t().transpose(0, 1)[:]
    x[:, 1:].add_(1)
    return x


def narrowed(x):
    x = x[:, :-1] if x.shape[1] > 1 else x
    return x.add_(1)


LOOPS = [views, reshapes, detached, detached_part, parameters, data, transposed, transposed_only, unsqueezed]


def run(loop, x, times, note):
    for _ in range(times):
        x = loop(x)
        note()
    return x


@pytest.mark.parametrize("loop", LOOPS)
def test_the_work_of_a_write_does_not_grow(loop, monkeypatch):
    """Counted are recorded nodes, and the calls that take a name for another one."""
    device = xla_devices.get(0)
    aliases = collections.Counter()
    for overload in (torch.ops.aten.detach.default, torch.ops.aten.alias.default, torch.ops.aten.alias_copy.default):
        alias = dispatch._handlers[overload]

        def counted(*arguments, alias=alias):
            aliases["all"] += 1
            return alias(*arguments)

        monkeypatch.setitem(dispatch._handlers, overload, counted)
    work = []
    x = torch.arange(24.0, dtype=torch.float64).reshape(4, 6)
    result = run(loop, x.to("xla"), 240, lambda: work.append(len(device.pending) + aliases["all"]))
    assert work[239] - work[119] <= 1.2 * (work[119] - work[0]) + 20
    device.pending.clear()
    del result


@pytest.mark.parametrize("loop", [*LOOPS, turned, narrowed])
def test_the_values_are_those_of_the_cpu(loop):
    x = torch.arange(24.0, dtype=torch.float64).reshape(4, 6)
    on_device = x.to("xla")
    beside, beside_on_device = x.view(-1), on_device.view(-1)
    times = 45
    expected, found = run(loop, x, times, lambda: None), run(loop, on_device, times, lambda: None)
    assert found.stride() == expected.stride()
    for one, other in ((found, expected), (on_device, x), (beside_on_device, beside)):
        assert torch.equal(one.detach().cpu(), other.detach())
