"""The functions of PyTorch/XLA's C++ module."""

from __future__ import annotations

import pytest
import torch

import lazy_runtime
from lazy_runtime.common import metrics
from lazy_runtime.torch_xla import _XLAC, experimental


def test_devices():
    assert _XLAC._xla_get_default_device() == "xla:0"
    assert _XLAC._xla_set_default_device("xla:0") == "xla:0"
    assert _XLAC._xla_get_default_device_ordinal() == 0
    assert _XLAC._xla_get_devices() == _XLAC._xla_real_devices() == lazy_runtime.real_devices()
    assert _XLAC._xla_num_devices() == lazy_runtime.device_count()
    assert _XLAC._xla_memory_info("xla:0")["bytes_limit"] > 0


def test_execution():
    x = torch.ones(3, device="xla") + 1
    _XLAC._xla_step_marker("xla:0", [], wait=True)
    assert metrics.value("ExecuteComputation") == 1
    y = x + 1
    _XLAC._xla_sync_multi([y], devices=[])
    _XLAC._xla_wait_device_ops(["xla:0"])
    assert metrics.value("ExecuteComputation") == 2
    assert [each.tolist() for each in _XLAC._xla_get_cpu_tensors([x, y])] == [[2] * 3, [3] * 3]
    _XLAC._set_use_eager_mode(True)
    assert _XLAC._get_use_eager_mode() is experimental.is_eager_mode() is True


def test_random_numbers():
    _XLAC._xla_set_rng_seed(4)
    assert _XLAC._xla_get_rng_seed() == 4


def test_metrics():
    torch.ones(3, device="xla").add(1)
    assert _XLAC._xla_counter_value("xla::add") == 1
    assert "xla::add" in _XLAC._xla_counter_names()
    assert "Counter: xla::add" in _XLAC._xla_metrics_report()
    lazy_runtime.sync()
    for name in _XLAC._xla_metric_names():
        assert _XLAC._xla_metric_data(name)[0] > 0
    _XLAC._clear_xla_counters()
    _XLAC._clear_xla_metrics()
    assert _XLAC._xla_counter_value("xla::add") is None
    assert _XLAC._xla_metric_names() == []


def test_a_report_of_some():
    x = torch.ones(3, device="xla") + 1
    lazy_runtime.sync()
    assert x.shape == (3,)
    report = _XLAC._short_xla_metrics_report(["xla::add", "no_such_counter"], ["TensorsGraphSize"])
    named = [line.split(": ")[1] for line in report.splitlines() if line.startswith(("Counter: ", "Metric: "))]
    assert sorted(named) == ["TensorsGraphSize", "xla::add"]


def test_graphs_as_text():
    x = torch.ones(3, device="xla")
    lazy_runtime.sync()
    y = x.sin() + 2
    assert "sin" in _XLAC._get_xla_tensors_text([y])
    assert "HloModule" in _XLAC._get_xla_tensors_hlo([y])
    assert _XLAC._get_xla_tensors_dot([y]).lstrip().startswith("digraph")
    assert "stablehlo.sine" in _XLAC._get_stablehlo([y])
    assert _XLAC._get_stablehlo([y], emit_bytecode=True).startswith(b"ML\xefR")


def test_a_tensors_number_is_that_of_its_memory():
    x, y = torch.ones(4, device="xla"), torch.ones(4, device="xla")
    number = _XLAC._xla_get_tensor_id(x)
    assert _XLAC._xla_get_tensor_id(y) != number
    assert _XLAC._xla_get_tensor_id(x[2:]) == _XLAC._xla_get_tensor_id(x.detach()) == number
    x.add_(1)
    lazy_runtime.sync()
    assert _XLAC._xla_get_tensor_id(x) == number
    with torch.inference_mode():
        a, b = x + 1, x + 1
        assert len({_XLAC._xla_get_tensor_id(each) for each in (a, b, x)}) == 3
    with pytest.raises(RuntimeError, match="expected an xla device, got cpu"):
        _XLAC._xla_get_tensor_id(torch.ones(1))
