import re

import pytest
import torch

import lazy_runtime
from lazy_runtime import debug
from lazy_runtime.common import metrics, output
from lazy_runtime.compilation import linearization
from lazy_runtime.debug import reports
from lazy_runtime.platform import xla_devices
from lazy_runtime.torch_xla.core import xla_model as xm
from lazy_runtime.torch_xla.debug import profiler
from lazy_runtime.torch_xla.experimental import eager_mode


@pytest.fixture
def written(monkeypatch):
    """The reports of level 1, as lines."""
    lines = []
    monkeypatch.setattr(output, "level", lambda: 1)
    monkeypatch.setattr(output, "write", lambda *written: lines.extend(written))
    monkeypatch.setattr(reports, "_summarize_at_exit", lambda: None)  # it would stay for the whole process of the tests
    return lines


def causes(lines):
    return [lines[n + 1].strip() for n, line in enumerate(lines) if line == "Compilation Cause"]


def test_causes_are_pytorch_xlas(written):
    x = torch.rand(4).to("xla")
    y = x.cos()
    lazy_runtime.sync()
    (y + 1).sum().item()
    with profiler.StepTrace("step"):
        y = x.sin()
    pending = x.log()
    with lazy_runtime.compile(name="my step"):
        y = x.tan()
    z = y.exp()
    eager_mode(True)
    assert z.shape == x.shape
    assert causes(written) == [
        "user torch_xla.sync",
        "most likely user code trying to access tensor value before torch_xla.sync",
        "torch_xla.sync when exiting a profiler StepTrace region",
        "torch_xla.compile clear the pending graph prior calling the target function",
        "torch_xla.compile",
        "switch to or from eager mode",
    ]
    names = [line.removeprefix("  Graph Name: ") for line in written if line.startswith("  Graph Name: ")]
    assert names == [*["SyncTensorsGraph"] * 3, "my step_clear_pending", "my step", "SyncTensorsGraph"]
    assert pending.shape == x.shape


def test_causes_around_compiled_functions(written):
    torch._dynamo.reset()
    model = torch.nn.Linear(8, 4).to("xla")
    compiled = torch.compile(model, backend="openxla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.rand(2, 8).to("xla")
    compiled(x).sum().backward()
    optimizer.step()
    compiled(x).sum().backward()
    xm.optimizer_step(optimizer)
    with torch.no_grad():
        compiled(x + 1)
    ended = "the optimizer's step has ended the training step"
    compiling = "dynamo is compiling a FX graph to HLO"
    found = causes(written)
    assert found[:2] == [ended, ended]  # the first step alone makes gradients where there were none
    assert set(found[2:-1]) == {compiling}
    assert found[-1] == "dynamo is executing a compiled program"  # what its argument waited for
    frames = [written[n + 1] for n, line in enumerate(written) if line.startswith("Python Frame")]
    assert all(f"({__file__}:" in frame for frame in frames)
    assert debug.syncs() == []


def test_so_many_frames_are_shown(written, monkeypatch):
    def inner(depth):
        return inner(depth - 1) if depth else torch.rand(4).to("xla").sinh().sum().item()

    monkeypatch.setenv("PT_XLA_DEBUG_MAX_FRAME", "3")
    inner(5)
    start = written.index("Python Frame Triggered Execution: ")
    assert all(line.startswith("  inner (") for line in written[start + 1 : start + 4])
    assert written[start + 4] == "  .........."


def test_graphs_are_told_apart_by_their_hash():
    device = xla_devices.get()
    x = torch.rand(4).to("xla")
    hashes = []
    for name in ("cos", "cos", "sin"):
        y = getattr(x, name)()
        hashes.append(reports.graph_hash(linearization.linearize(device, device.pending[:], donate=False).graph))
        lazy_runtime.sync()
        assert y.shape == x.shape
    assert hashes[0] == hashes[1] != hashes[2]
    assert all(re.fullmatch("[0-9a-f]{32}", found) for found in hashes)


def test_what_happens_too_often_is_said_at_the_end():
    metrics.count("MarkStep", 20)
    for _ in range(15):
        metrics.record("CompileTime", 400e9)
        metrics.record("TransferFromDeviceTime", 1e6)
    metrics.count("aten::some_operator")
    assert reports.summary() == [
        "CompileTime too frequent: 15 counts during 20 steps",
        "TransferFromDeviceTime too frequent: 15 counts during 20 steps",
        "CompileTime too long: longest instance took 400 s",
        "Op(s) not lowered: aten::some_operator",
    ]
    metrics.clear()
    assert reports.summary() == []
