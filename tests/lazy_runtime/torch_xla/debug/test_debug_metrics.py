import json

import torch

import lazy_runtime
from lazy_runtime.ops import registry
from lazy_runtime.recording import decompose, dispatch, fallback
from lazy_runtime.torch_xla.debug import metrics as met
from lazy_runtime.torch_xla.experimental import eager_mode


def run_a_step(x):
    y = (x @ x).relu()
    lazy_runtime.sync()
    return y


def test_what_a_lazy_step_counts_and_measures():
    x = torch.rand(4, 4).to("xla")
    lazy_runtime.sync()
    met.clear_all()
    run_a_step(x)
    y = run_a_step(x)
    assert met.counter_value("xla::mm") == met.counter_value("xla::relu") == 2
    assert met.counter_value("MarkStep") == 2
    assert (met.counter_value("UncachedCompile"), met.counter_value("CachedCompile")) == (1, 1)
    assert (met.counter_value("UncachedSyncTensors"), met.counter_value("CachedSyncTensors")) == (1, 1)
    y.cpu()
    for name, samples in {
        "CompileTime": 1,
        "ExecuteTime": 1,  # of the first: that of the second is seen when something runs or waits
        "TensorsGraphSize": 2,
        "DeviceLockWait": 2,
        "InputOutputAliasCount": 1,
        "LazyTracing": 2,
        "TransferFromDeviceTime": 1,
    }.items():
        total, accumulator, kept = met.metric_data(name)
        assert total >= samples, name
        assert len(kept) == total
        assert accumulator == sum(value for _, value in kept)
    assert met.metric_data("TensorsGraphSize")[1] == 4
    assert met.metric_data("TransferToDeviceTime") is None
    assert met.counter_value("TransferToDevice") is None


def test_donated_buffers_are_counted():
    weight = torch.rand(4, 4).to("xla")
    met.clear_all()
    weight += 1
    lazy_runtime.sync()
    assert met.metric_data("InputOutputAliasCount")[:2] == (1, 1)


def test_tensors_and_buffers_that_come_and_go():
    lazy_runtime.sync()
    met.clear_all()
    x = torch.rand(4).to("xla")
    y = x + 1
    names = "CreateXlaTensor", "DestroyXlaTensor", "CreateDataHandles", "DestroyDataHandles"
    before = [met.counter_value(name) or 0 for name in names]
    assert before[2] == 1  # x; y waits for its buffer
    lazy_runtime.sync()
    assert met.counter_value("CreateDataHandles") == 2
    assert (met.counter_value("DestroyDataHandles") or 0) == before[3]
    del x, y
    assert met.counter_value("DestroyDataHandles") == before[3] + 2
    assert met.counter_value("DestroyXlaTensor") == before[1] + 2
    assert met.counter_value("CreateXlaTensor") == before[0]


def test_clearing_and_selecting():
    run_a_step(torch.rand(4, 4).to("xla"))
    report = met.metrics_report(["xla::mm"], ["CompileTime"])
    assert "Counter: xla::mm\n  Value: 1\n" in report
    assert "Metric: CompileTime\n" in report
    assert "xla::relu" not in report
    assert "TensorsGraphSize" not in report
    short = met.short_metrics_report()
    assert "Counter: MarkStep" in short
    assert "xla::mm" not in short
    met.clear_counters()
    assert met.counter_names() == []
    assert "CompileTime" in met.metric_names()
    met.clear_metrics()
    assert met.metric_names() == []
    run_a_step(torch.rand(4, 4).to("xla"))
    met.clear_all()
    assert met.metrics_report() == ""


def test_the_same_for_machines():
    run_a_step(torch.rand(4, 4).to("xla"))
    assert 'xla_operators_total{operator="mm"} 1' in met.prometheus_text().splitlines()
    report = json.loads(met.json_report())
    assert report["counters"]["xla::mm"] == 1
    assert report["metrics"]["TensorsGraphSize"]["total_samples"] == 1


def test_operators_without_a_lowering_are_in_every_report(monkeypatch):
    overload = torch.ops.aten.erf.default
    monkeypatch.delitem(registry.table, overload)
    monkeypatch.delitem(decompose.decomposition_table, overload, raising=False)
    monkeypatch.setitem(dispatch._handlers, overload, fallback.call)
    torch.erf(torch.rand(4).to("xla")).cpu()
    assert met.executed_fallback_ops() == ["aten::erf"]
    assert "Counter: aten::erf\n  Value: 1\n" in met.short_metrics_report()


def test_eager_operators_have_metrics_of_their_own():
    x = torch.rand(4).to("xla")
    eager_mode(True)
    met.clear_all()
    x = x.cos().sin().cos()
    assert met.metric_data("EagerOpExecuteTime")[0] == met.counter_value("EagerOpExecuteTime") == 3
    assert met.metric_data("EagerOpCompileTime")[0] == met.counter_value("EagerOpCompileTime") == 2
    assert met.metric_data("TensorsGraphSize") is None


def test_compiled_calls_have_metrics_of_their_own():
    compiled = torch.compile(torch.relu, backend="openxla")
    x = torch.rand(4).to("xla")
    met.clear_all()
    compiled(x)
    compiled(torch.relu(x))
    assert met.counter_value("DynamoExtractCompiledGraph") == 1
    assert met.counter_value("DynamoSyncInputExecuteTime") == 1
    assert met.metric_data("RunCachedGraphInputData")[0] == met.metric_data("RunCachedGraphOutputData")[0] == 2
