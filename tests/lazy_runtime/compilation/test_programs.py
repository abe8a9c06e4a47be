"""How many programs are kept, which go first, and that nothing of them is left."""

from __future__ import annotations

import gc

import pytest
import torch

import lazy_runtime
from lazy_runtime.common import metrics
from lazy_runtime.compilation import compiler
from lazy_runtime.compilation.compiler import Executable
from lazy_runtime.debug import compiling
from lazy_runtime.ir import spec
from lazy_runtime.ir.graph import Call
from lazy_runtime.torch_xla.experimental import eager_mode_context
from openxla_backend.execution.device import DeviceRun
from openxla_backend.execution.host import HostRun

# torch 2.13's register of the code that Dynamo made raises KeyError where that code dies after a reset
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <function Tracker:pytest.PytestUnraisableExceptionWarning"
)

BOUND = 8


@pytest.fixture(autouse=True)
def small(monkeypatch):
    lazy_runtime.sync()
    torch._dynamo.reset()
    compiler.clear()
    compiling.clear()
    gc.collect()  # what other tests have compiled is counted with what is alive
    monkeypatch.setenv("XLA_COMPILATION_CACHE_SIZE", str(BOUND))
    with torch._dynamo.config.patch(recompile_limit=1000):
        yield
    torch._dynamo.reset()
    compiler.clear()


def alive(*kinds):
    for _ in range(3):
        gc.collect()
    objects = gc.get_objects()
    return [sum(type(each) is kind for each in objects) for kind in kinds]


def function(x):
    return ((x * 2).sin() + x.sum()).sum(0)


def lazily(n):
    return function(torch.ones(n, 3, device="xla"))


def test_programs_and_what_they_are_made_of_go():
    programs, calls, specs = alive(Executable, Call, spec.TensorSpec)
    sizes = []
    for n in range(2, 34):
        assert lazily(n).shape == (3,)
        assert lazily(n).cpu().shape == (3,)
        if n % 16 == 1:
            sizes.append(alive(Executable, Call, spec.TensorSpec))
    assert compiler.count() == BOUND
    assert metrics.value("EvictedComputations") == 32 - BOUND
    assert sizes[1][0] <= programs + BOUND
    # reports remember 32 programs of each line
    assert sizes[1][1] <= calls + (32 + BOUND) * 5
    assert sizes[1][2] <= specs + (32 + BOUND) * 3
    compiling.clear()
    compiler.clear()
    left = alive(Executable, Call, spec.TensorSpec)
    assert left[0] <= programs
    assert left[1] <= calls + 5
    assert left[2] <= specs + 5


def test_those_that_were_not_run_for_longest_go_first():
    lazily(50).cpu()
    for n in range(2, 2 + 3 * BOUND):
        lazily(n).cpu()
        lazily(50).cpu()
    assert metrics.value("UncachedCompile") == 1 + 3 * BOUND


def test_operators_of_eager_mode_are_bounded():
    others = alive(Executable)[0]  # functions that other tests have compiled
    with eager_mode_context(True):
        for n in range(2, 20):
            lazily(n).cpu()
    assert compiler.count() <= BOUND
    compiling.clear()
    assert alive(Executable)[0] <= others + BOUND


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_compiled_functions(device):
    compiled = torch.compile(function, backend="openxla", dynamic=False)
    expected = {n: function(torch.ones(n, 3)) for n in range(2, 16)}
    for _ in range(2):  # what has gone is compiled again
        for n in expected:
            torch.testing.assert_close(compiled(torch.ones(n, 3, device=device)).cpu(), expected[n])
            assert compiler.count() <= BOUND


def test_dynamic_sizes():
    compiled = torch.compile(function, backend="openxla", dynamic=True)
    for n in range(2, 20):
        torch.testing.assert_close(compiled(torch.ones(n, 3)), function(torch.ones(n, 3)))
    assert compiler.count() <= BOUND


def test_an_equal_function_keeps_the_program_of_one_that_is_gone():
    x = torch.ones(4, 3, device="xla")
    lazy_runtime.sync()
    metrics.clear()
    first = torch.compile(lambda x: x * 3 + 1, backend="openxla")
    second = torch.compile(lambda x: x * 3 + 1, backend="openxla")
    assert first(x).tolist() == second(x).tolist()
    assert metrics.value("UncachedCompile") == 1
    del first
    alive()
    assert second(x).tolist() == [[4] * 3] * 4
    assert metrics.value("UncachedCompile") == 1


def in_parts(x):
    y = x * 3
    torch._dynamo.graph_break()
    return y.cos()


def a_step():
    model = torch.nn.Linear(3, 2, device="xla")
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


KINDS = {
    "xla": (lambda: function, "xla"),
    "xla, parts": (lambda: in_parts, "xla"),
    "xla, step": (a_step, "xla"),
    "cpu": (lambda: function, "cpu"),
    "cpu, parts": (lambda: in_parts, "cpu"),
}


@pytest.mark.parametrize(("make", "device"), KINDS.values(), ids=KINDS)
def test_nothing_outlives_a_reset(make, device):
    """Dynamo keeps graphs of what was compiled under global names of this module."""
    called = torch.compile(make(), backend="openxla")
    for _ in range(2):
        called(torch.ones(4, 3, device=device)).cpu()
    assert sum(alive(DeviceRun, HostRun)) > 0
    torch._dynamo.reset()
    assert alive(DeviceRun, HostRun) == [0, 0]
    assert called(torch.ones(4, 3, device=device)).cpu().isfinite().all()


def test_a_backward_pass_of_before_a_reset():
    x = torch.ones(4, 3, device="xla", requires_grad=True)
    y = torch.compile(function, backend="openxla")(x).sum()
    torch._dynamo.reset()
    y.backward()
    expected = torch.ones(4, 3, requires_grad=True)
    function(expected).sum().backward()
    torch.testing.assert_close(x.grad.cpu(), expected.grad)
