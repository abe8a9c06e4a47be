"""One executable per graph, and what it does with scalars, layouts and donated buffers."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import torch

from lazy_runtime.common import metrics
from lazy_runtime.compilation import compiler, linearization
from lazy_runtime.lowering import checks
from lazy_runtime.ops import registry
from lazy_runtime.recording.dispatch import record as record_node
from tests.lazy_runtime.graphs import buffers, number, record

aten = torch.ops.aten


def counts():
    return metrics.value("UncachedCompile"), metrics.value("CachedCompile")


def test_equal_programs_are_compiled_once():
    compiler.clear()
    x, y = buffers(torch.ones(5), torch.full((5,), 2.0))
    metrics.clear()
    programs = [number(lambda x: x * 3 + x, tensor) for tensor in (x, y)]
    executables = [compiler.executable(numbered.graph) for numbered, _kept in programs]
    assert executables[0] is executables[1]
    assert counts() == (1, 1)
    assert [executables[0]([z.handle.value.array])[0].tolist() for z in (x, y)] == [[4] * 5, [8] * 5]
    other, _kept = number(lambda x: x * 4 + x, x)
    assert compiler.executable(other.graph) is not executables[0]
    assert counts() == (2, 1)


def test_clear_forgets():
    (x,) = buffers(torch.ones(5))
    numbered, _kept = number(lambda x: x * 7, x)
    first = compiler.executable(numbered.graph)
    compiler.clear()
    metrics.clear()
    second = compiler.executable(numbered.graph)
    assert second is not first
    assert counts() == (1, 0)
    assert second([x.handle.value.array])[0].tolist() == [7] * 5


def test_numbers_that_change_are_inputs():
    x = torch.ones(3, device="xla")
    add = registry.table[aten.add.Tensor]
    (inner,) = buffers(torch.ones(3))
    results = []
    del x
    for number_, alpha in ((0.25, 3), (7.5, 4)):
        kept = record_node(add, (inner, number_), {"alpha": alpha})
        node = kept.handle.value.node
        graph = linearization.linearize(inner.spec.device, [node], donate=False).graph
        executable = compiler.executable(graph)
        results.append((executable, executable([inner.handle.value.array], node.floats, node.ints)[0].tolist()))
    assert results[0][0] is results[1][0]
    assert [values for _, values in results] == [[1.75] * 3, [31] * 3]


def test_layouts_are_part_of_the_key():
    image, filters = torch.arange(24.0).reshape(1, 2, 3, 4), torch.ones(3, 2, 1, 1)
    x, w = buffers(image, filters)
    numbered, _kept = number(lambda x, w: aten.convolution(x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1), x, w)
    arrays = [x.handle.value.array, w.handle.value.array]
    plain, last = compiler.executable(numbered.graph), compiler.executable(numbered.graph, keep_layout=None)
    assert (plain.physical, last.physical) == ((False,), (True,))
    (there,), (here,) = last(arrays), plain(arrays)
    expected = torch.nn.functional.conv2d(image, filters).numpy()
    np.testing.assert_array_equal(np.asarray(here), expected)
    np.testing.assert_array_equal(np.moveaxis(np.asarray(there), -1, 1), expected)


def test_only_donated_buffers_are_gone():
    x, y = buffers(torch.ones(1000), torch.ones(1000))
    held, given = x.handle.value.array, y.handle.value.array
    device = x.spec.device
    nodes, _kept = record(lambda x, y: x + y, x, y)
    del y
    numbered = linearization.linearize(device, nodes, donate=True)
    assert numbered.graph.donated == (1,)
    (result,) = compiler.executable(numbered.graph)([held, given])
    assert (held.is_deleted(), given.is_deleted()) == (False, True)
    assert float(result[0]) == 2


def test_a_start_is_counted_unless_its_caller_has():
    (x,) = buffers(torch.ones(5))
    numbered, _kept = number(lambda x: x * 9, x)
    executable = compiler.executable(numbered.graph)
    metrics.clear()
    executable([x.handle.value.array])
    assert metrics.value("ExecuteComputation") == 1
    executable([x.handle.value.array], counted=True)
    assert metrics.value("ExecuteComputation") == 1


@pytest.fixture
def failing(monkeypatch):
    """Runs a program of two operators whose execution fails with a message of XLA's."""

    def run(message):
        (x,) = buffers(torch.ones(5))
        numbered, _kept = number(lambda x: x.exp().sin(), x)
        executable = compiler.executable(numbered.graph)

        def fail(*_):
            raise jax.errors.JaxRuntimeError(message)

        monkeypatch.setattr(executable, "compiled", fail)
        executable([x.handle.value.array], lines={1: "train.py:2"})

    return run


def test_an_error_of_a_kernel_is_what_the_kernel_means(failing):
    metrics.clear()
    with pytest.raises(checks.KernelError) as raised:
        failing("INTERNAL: [aten #1 ValueError] not a number [end]")
    assert raised.value.call == 1
    assert type(raised.value.meaning) is ValueError
    assert str(raised.value.meaning) == "not a number\n  aten::sin, called at train.py:2"
    assert metrics.value("ExecuteComputation") == 0


def test_another_error_of_xla_s_stays_what_it_is(failing):
    with pytest.raises(jax.errors.JaxRuntimeError, match="out of memory"):
        failing("out of memory")
