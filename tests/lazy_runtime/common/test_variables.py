"""Each environment variable by its effect, where it is read at start in a process of its own."""

import re
from pathlib import Path

import pytest
import torch

import lazy_runtime
from lazy_runtime.common import config, environment
from lazy_runtime.debug import environment_page
from lazy_runtime.tensor.xla_tensor import unwrap
from lazy_runtime.torch_xla.core import xla_env_vars

ROOT = Path(__file__).parents[3]
NO_CACHE = {"XLA_PERSISTENT_CACHE_PATH": "0"}


def test_the_documentation_is_current():
    assert (ROOT / "docs/environment.md").read_text() == environment_page.markdown(), (
        "run `python -m lazy_runtime.debug.environment_page > docs/environment.md`"
    )


def test_every_variable_that_is_read_is_in_the_table():
    known = {variable.name for variable in environment.TABLE}
    assert len(known) == len(environment.TABLE)
    read = set()
    for package in ("lazy_runtime", "openxla_backend"):
        for path in (ROOT / package).rglob("*.py"):
            read.update(
                re.findall(r"""(?:environ(?:\.get\(|\[)|environment\.value\(|_switch\()"(\w+)""", path.read_text())
            )
    others = re.compile(  # libtpu's, torchrun's, and those of PyTorch/XLA's runtime, which nobody reads
        "(CLOUD_)?TPU_|(LOCAL_)?(RANK|WORLD_SIZE)$|ACCELERATOR_TYPE$|WORKER_ID$"
        "|TPUVM_MODE$|PJRT_(CPU_ASYNC_CLIENT|DIST_SERVICE_ADDR|DYNAMIC_PLUGINS|LOCAL_PROCESS_|SELECT_DEFAULT_DEVICE)"
    )
    assert {v for name, v in vars(xla_env_vars).items() if name.isupper() and not others.match(v)} <= known
    # those of compilers and libraries, which are not this package's
    assert {name for name in read if name.startswith(("XLA_", "PT_XLA", "PJRT", "CPU_NUM"))} - known <= {"XLA_FLAGS"}


def test_a_value_that_is_not_legal_is_an_error_that_lists_the_legal_ones(monkeypatch):
    monkeypatch.setenv("XLA_SAVE_TENSORS_FMT", "svg")
    with pytest.raises(ValueError, match=r"XLA_SAVE_TENSORS_FMT is 'svg', .*: text, dot, hlo, stablehlo"):
        environment.check()
    monkeypatch.setenv("XLA_SAVE_TENSORS_FMT", "DOT")
    environment.check()
    for name, value, legal in (
        ("XLA_USE_BF16", "maybe", "0, 1, false, true"),
        ("PT_XLA_DEBUG_LEVEL", "3", "0, 1, 2"),
        ("CPU_NUM_DEVICES", "0", "an integer from 1 to 1024"),
        ("CPU_NUM_DEVICES", "100000", "an integer from 1 to 1024"),
    ):
        monkeypatch.setenv(name, value)
        with pytest.raises(ValueError, match=f"{name} is '{value}', which is none of its legal values: {legal}"):
            environment.check()
        monkeypatch.delenv(name)


@pytest.mark.parametrize(("text", "value"), [("1", True), ("On", True), ("false", False), ("", True), ("no", False)])
def test_switches(monkeypatch, text, value):
    monkeypatch.setenv("XLA_ENABLE_PARAM_ALIASING", text)  # on by default
    assert config.donation() is value


def test_the_older_name_of_the_debug_level(monkeypatch):
    monkeypatch.delenv("PT_XLA_DEBUG_LEVEL", raising=False)
    monkeypatch.setenv("PT_XLA_DEBUG", "1")
    assert config.debug_level() == 2
    monkeypatch.setenv("PT_XLA_DEBUG_LEVEL", "1")
    assert config.debug_level() == 1


def test_an_illegal_value_stops_the_first_use_of_xla(forked_process):
    forked_process(
        """
        import torch
        try:
            torch.zeros(1, device="xla")
        except ValueError as error:
            assert "XLA_SYNC_WAIT is '2', which is none of its legal values" in str(error), error
        else:
            raise AssertionError
        import lazy_runtime, os
        del os.environ["XLA_SYNC_WAIT"]
        os.environ["PJRT_DEVICE"] = "FOO"
        try:
            lazy_runtime.device_count()
        except RuntimeError as error:
            assert "PJRT_DEVICE is 'FOO': it takes CPU, CUDA, TPU, or another" in str(error), error
        else:
            raise AssertionError
        os.environ["PJRT_DEVICE"] = "cpu"
        assert torch.ones(2, device="xla").sum().item() == 2
        """,
        XLA_SYNC_WAIT="2",
    )


def test_narrow_dtypes_are_chosen_by_the_first_tensor(forked_process):
    """Lightning asks for a device, and sets XLA_USE_BF16 afterwards."""
    forked_process(
        """
        import os
        import torch, lazy_runtime
        from lazy_runtime.tensor.xla_tensor import unwrap
        device = lazy_runtime.device()
        lazy_runtime.manual_seed(0)
        os.environ["XLA_USE_BF16"] = "1"
        x = torch.ones(2).to(device)
        del os.environ["XLA_USE_BF16"]
        y = x + torch.ones(2, device=device)
        lazy_runtime.sync()
        for each in (x, y):
            assert str(unwrap(each).handle.value.array.dtype) == "bfloat16"
        """,
        XLA_USE_BF16="",
    )


# Each snippet has `torch`, `lazy_runtime`, `array(tensor)`: the device's buffer, and `metrics`.
_PRELUDE = """
import torch, lazy_runtime, sys, os
from lazy_runtime.common import metrics
from lazy_runtime.tensor.xla_tensor import unwrap
def array(tensor):
    lazy_runtime.sync()
    return unwrap(tensor).handle.value.array
"""

_EFFECTS = {
    "XLA_USE_BF16": """
        x = torch.tensor([1.001, 3e38]).to("xla")
        y = torch.rand(8, 8, device="xla") @ torch.rand(8, 8, device="xla")
        assert x.dtype == y.dtype == torch.float32
        assert str(array(x).dtype) == str(array(y).dtype) == "bfloat16"
        assert x.cpu().dtype == torch.float32 and x.cpu()[0] == 1.0
        double = torch.tensor([1.001], dtype=torch.float64).to("xla")
        assert str(array(double).dtype) == "bfloat16" and double.cpu().dtype == torch.float64 and double.cpu()[0] == 1.0
        assert "bf16[1]{0} xla::device_data" in lazy_runtime.torch_xla._XLAC._get_xla_tensors_text([double + 1])
        assert torch.linalg.inv(torch.eye(3).to("xla")).cpu().equal(torch.eye(3))  # LAPACK has no such type
        plain = torch.tensor([1.001])  # the memory of plain tensors is what it is
        assert torch.compile(lambda x: x + 0, backend="openxla")(plain).equal(plain)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.MaxPool2d(2)
        ).to("xla")
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            model(torch.rand(2, 3, 8, 8).to("xla")).sum().backward()
            optimizer.step()
        weight = next(model.parameters())
        assert weight.grad.dtype == torch.float32 and str(array(weight.grad).dtype) == "bfloat16"
        with torch.no_grad():  # a weight that inference would keep in another order
            layer = torch.nn.Linear(512, 512).to("xla")
            torch.compile(layer, backend="openxla")(torch.rand(32, 512).to("xla")).cpu()
        """,
    "XLA_DOWNCAST_BF16 XLA_USE_32BIT_LONG": """
        assert str(array(torch.rand(2).to("xla")).dtype) == "bfloat16"
        x = torch.rand(2, dtype=torch.float64).to("xla")
        assert x.dtype == (x + 1).dtype == x.cpu().dtype == torch.float64
        assert str(array(x + 1).dtype) == "float32"
        x = torch.tensor([2**31 + 5, 7]).to("xla")
        assert x.dtype == torch.int64 and str(array(x).dtype) == "int32"
        assert x.cpu().tolist() == [5 - 2**31, 7]
        unsigned = torch.tensor([2**32 + 5], dtype=torch.uint64).to("xla")
        assert str(array(unsigned).dtype) == "uint32" and unsigned.cpu().dtype == torch.uint64
        assert (x // 2).cpu()[1] == 3 and torch.rand(9, device="xla").argmax().dtype == torch.int64
        pooled, places = torch.nn.functional.max_pool2d(torch.rand(1, 1, 4, 4).to("xla"), 2, return_indices=True)
        assert torch.nn.functional.max_unpool2d(pooled, places, 2).sum().item() == pooled.sum().item()
        """,
    "XLA_USE_SPMD": """
        from lazy_runtime.torch_xla import runtime as xr
        assert xr.is_spmd() and xr.world_size() == 1
        assert len((torch.ones(2, device="xla") + 1).shape) == 1 and lazy_runtime.device_count() == 1
        """,
    "XLA_NO_SPECIAL_SCALARS": """
        x = torch.rand(2).to("xla")
        for number in (0.0, 1.0, -1.0, 5.0):
            y = x * number + 1
            lazy_runtime.sync()
            assert torch.allclose(y.cpu(), x.cpu() * number + 1)  # XLA may round the product and sum once
        assert metrics.value("UncachedCompile") == 1
        """,
    "XLA_SYNC_WAIT": """
        x = torch.rand(600, 600, device="xla")
        for _ in range(10):
            x = (x @ x).tanh()
        assert array(x).is_ready()
        """,
    "XLA_SYNC_TENSORS_OPBYOP": """
        x = torch.rand(4).to("xla")
        y = x.cos().sin().tanh()
        dead = y.exp()
        del dead
        lazy_runtime.sync()
        assert metrics.value("ExecuteComputation") == 3
        assert torch.allclose(y.cpu(), x.cpu().cos().sin().tanh())
        (x + 1).mul(2).cpu()
        assert metrics.value("ExecuteComputation") == 4  # a read is no sync
        """,
    "XLA_GET_TENSORS_OPBYOP": """
        x = torch.rand(4).to("xla")
        assert torch.allclose((x + 1).mul(2).cpu(), (x.cpu() + 1) * 2)
        assert metrics.value("ExecuteComputation") == 2 + 0
        y = x.cos().sin()
        lazy_runtime.sync()
        assert metrics.value("ExecuteComputation") == 3
        """,
    "SYNC_TENSORS_OPBYOP GET_TENSORS_OPBYOP": """
        (torch.rand(4).to("xla") + 1).mul(2).cpu()
        assert metrics.value("ExecuteComputation") == 2
        y = torch.rand(4).to("xla").cos().sin()
        lazy_runtime.sync()
        assert metrics.value("ExecuteComputation") == 4
        """,
    "XLA_IR_DEBUG": """
        from lazy_runtime.debug import graphs
        def function(x):
            return x + 1
        text = graphs.text([function(torch.rand(4).to("xla"))])
        assert "aten::add.Tensor(%0), other=1, location=function@<string>:" in text, text
        assert " < <module>@<string>:" in text
        from lazy_runtime.torch_xla.debug import profiler as xp
        for _ in range(2):
            with xp.StepTrace("step"):
                with xp.Trace("first"):
                    y = torch.rand(4).to("xla").cos()
                with xp.Trace("second"):
                    y = y.sin()
                text = graphs.text([y])
                assert "aten::cos(%0), scope=step.1/first.1, location=" in text, text
                assert "aten::sin(%1), scope=step.1/second.2, location=" in text, text
                assert "step.1/first.1/aten::cos[" in graphs.hlo([y])
            lazy_runtime.sync()
        """,
    "XLA_HLO_DEBUG": """
        from lazy_runtime.debug import graphs
        def function(x):
            return x + 1
        y = function(torch.rand(4).to("xla"))
        assert "aten::add.Tensor[function(<string>:" in graphs.hlo([y])
        assert "aten::add.Tensor[function(<string>:" in graphs.stablehlo([y])
        lazy_runtime.sync()
        from lazy_runtime.compilation import compiler
        (found,) = compiler._executables.values()
        assert "aten::add.Tensor[function(<string>:" in found.compiled.as_text()
        compiler.clear()
        torch.compile(function, backend="openxla")(torch.rand(4))
        (found,) = compiler._executables.values()
        assert "aten::add.Tensor[" in found.compiled.as_text()  # Dynamo keeps no lines of a string
        """,
    "XLA_USE_EAGER_DEBUG_MODE": """
        x = torch.rand(4).to("xla")
        before = metrics.value("ExecuteComputation")
        y = x.cos().sin()
        assert metrics.value("ExecuteComputation") == before + 2
        """,
}


@pytest.mark.parametrize("names", _EFFECTS)
def test_effect(forked_process, names):
    code = "\n".join(line.removeprefix(" " * 8) for line in _EFFECTS[names].splitlines())
    forked_process(_PRELUDE + code, **dict.fromkeys(names.split(), "1"), **NO_CACHE)


def test_number_of_devices_and_platform(forked_process):
    code = "import lazy_runtime; assert lazy_runtime.device_count() == 3; print(lazy_runtime.real_devices())"
    found = forked_process(code, CPU_NUM_DEVICES="3", PJRT_DEVICE="CPU")
    assert found == "['CPU:0', 'CPU:1', 'CPU:2']\n"


def test_graphs_are_saved_as_they_are_executed(forked_process, tmp_path):
    path = tmp_path / "graphs.txt"
    code = """
y = torch.rand(4).to("xla").cos()
lazy_runtime.sync()
z = y.sin()
lazy_runtime.sync()
"""
    forked_process(_PRELUDE + code, XLA_SAVE_TENSORS_FILE=str(path), XLA_SAVE_TENSORS_FMT="dot", **NO_CACHE)
    text = path.read_text()
    assert text.count("[ScheduleSyncTensorsGraph]") == text.count("digraph G {") == 2
    assert text.index("aten::cos") < text.index("aten::sin")
    assert "<module> (<string>:" in text


def test_graphs_of_a_rank_have_a_file_of_their_own(forked_process, tmp_path):
    code = """
import types
from lazy_runtime.debug import graph_saver
from lazy_runtime.processes.process_job import Place
graph_saver.process_job = types.SimpleNamespace(process_place=lambda: Place(1, 2, 1, 2))
torch.rand(4).to("xla").cos().cpu()
"""
    forked_process(_PRELUDE + code, XLA_SAVE_TENSORS_FILE=str(tmp_path / "graphs.txt"), **NO_CACHE)
    (path,) = tmp_path.iterdir()
    assert path.name == "graphs.txt.1"
    assert "aten::cos" in path.read_text()


def test_metrics_are_appended_at_each_step(monkeypatch, tmp_path, capsys):
    path = tmp_path / "metrics.txt"
    monkeypatch.setenv("XLA_METRICS_FILE", str(path))
    x = torch.rand(4).to("xla")
    for _ in range(2):
        x = x.sin()
        lazy_runtime.sync()
    first, second = re.findall(r"\[MetricsData; step=(\d+)\]", path.read_text())
    assert int(second) == int(first) + 1
    assert "Counter: xla::sin\n  Value: 2\n" in path.read_text().split("[MetricsData")[-1]
    for name in ("STDOUT", "STDERR"):
        monkeypatch.setenv("XLA_METRICS_FILE", name)
        lazy_runtime.sync()
    printed = capsys.readouterr()
    assert f"[MetricsData; step={int(second) + 1}]\n" in printed.out
    assert f"[MetricsData; step={int(second) + 2}]\n" in printed.err


@pytest.mark.parametrize("on", ["1", "0"])
def test_buffers_that_die_are_given_to_xla(monkeypatch, on):
    monkeypatch.setenv("XLA_ENABLE_PARAM_ALIASING", on)
    weight = torch.rand(5, int(on) + 2).to("xla")
    buffer = unwrap(weight).handle.value.array
    weight += 1
    lazy_runtime.sync()
    assert buffer.is_deleted() is (on == "1")


def test_steps_are_logged(monkeypatch, capsys):
    monkeypatch.setenv("XLA_EMIT_STEPLOG", "1")
    lazy_runtime.sync()
    assert capsys.readouterr().err == "lazy_runtime.sync\n"


def test_graphs_from_dynamo_are_printed(monkeypatch, capsys):
    monkeypatch.setenv("XLA_DYNAMO_DEBUG", "1")
    torch.compile(lambda x: x.cos() + 1, backend="openxla")(torch.rand(4))
    text = capsys.readouterr().err
    assert "torch.ops.aten.cos.default" in text
    assert "= aten::cos(%-1) : float32[4]" in text


def test_forms_of_saved_graphs(forked_process, tmp_path):
    """The form is read for each graph."""
    path = tmp_path / "graphs.txt"
    code = """
def step(x):
    return x.cos()
x = torch.rand(4).to("xla")
for form in ("", "hlo", "stablehlo"):
    os.environ["XLA_SAVE_TENSORS_FMT"] = form
    lazy_runtime.compile(step)(x)
"""
    forked_process(_PRELUDE + code, XLA_SAVE_TENSORS_FILE=str(path), **NO_CACHE)
    text, hlo, stablehlo = path.read_text().split("Graph Name: step\nTensorsGraphInfo:\n")[1:]
    assert "%1 = f32[4]{0} aten::cos(%0), ROOT=0" in text
    assert "HloModule jit_step" in hlo
    assert "stablehlo.cosine" in stablehlo


def test_graphs_of_compiled_functions_are_saved(forked_process, tmp_path):
    path = tmp_path / "graphs.txt"
    code = """
step = torch.compile(lambda x, y: (x.cos() + y, torch.rand_like(x)), backend="openxla")
x = torch.rand(4)
step(x.to("xla"), 2 * x.to("xla"))
step(x.to("xla"), x.to("xla"))
"""
    forked_process(_PRELUDE + code, XLA_SAVE_TENSORS_FILE=str(path), **NO_CACHE)
    text = path.read_text()
    assert text.count("aten::cos(%") == 2
    assert "aten::rand" in text or "aten::uniform" in text


def test_hlo_names_the_lines_of_a_compiled_training_step(forked_process, tmp_path):
    (tmp_path / "train.py").write_text("def model(x, w):\n    return (x @ w).tanh()\n")
    code = f"""
os.chdir({str(tmp_path)!r})
sys.path.insert(0, "")
import train
from lazy_runtime.compilation import compiler
def step(x, w):
    torch.compile(train.model, backend="openxla")(x, w).square().sum().backward()
w = torch.rand(4, 4, device="xla", requires_grad=True)
step(torch.rand(2, 4).to("xla"), w)
lazy_runtime.sync()
(found,) = compiler._executables.values()
text = found.compiled.as_text()
for name in (
    "openxla::graph[model(train.py:1) < step(<string>:",  # the call that the forward graph's operators are in
    "aten::mm[model(train.py:2)]",
    "aten::tanh[model(train.py:2)]",
    "aten::tanh_backward[model(train.py:2)]",
):
    assert name in text, name
"""
    forked_process(_PRELUDE + code, XLA_HLO_DEBUG="1", **NO_CACHE)


_LOOP = """
def step(x, w):
    return (x @ w).relu().sum()
w = torch.rand(8, 8).to("xla")
for n in (8, 8, 5):
    loss = step(torch.rand(n, 8).to("xla"), w)
    if n == 5:
        loss = loss * 2
    lazy_runtime.sync()
print(loss.item())
print((loss + 1).item())
"""


@pytest.mark.parametrize("level", [1, 2])
def test_debug_level(forked_process, tmp_path, level):
    path = tmp_path / "report.txt"
    forked_process(_PRELUDE + _LOOP, PT_XLA_DEBUG_LEVEL=str(level), PT_XLA_DEBUG_FILE=str(path), **NO_CACHE)
    lines = path.read_text().splitlines()
    assert all(line.startswith("pt-xla-profiler: ") for line in lines)
    lines = [line.removeprefix("pt-xla-profiler: ") for line in lines]
    assert lines.count("Compilation Analysis") == lines.count("Post Compilation Analysis") == 3
    for what in ("Floating-point operations: ", "Bytes accessed: 0.", "Peak device memory: 0."):
        assert sum(line.startswith(what) for line in lines) == 3
    assert lines.count("Execution Analysis") == (4 if level == 2 else 0)
    assert lines.count("  user torch_xla.sync") == (5 if level == 2 else 2)
    read = "  most likely user code trying to access tensor value before torch_xla.sync"
    assert lines.count(read) == (2 if level == 2 else 1)
    start = lines.index("Graph Info: ")
    assert lines[start + 1] == "  Graph Name: SyncTensorsGraph"
    assert re.fullmatch("  Graph Hash: [0-9a-f]{32}", lines[start + 2])
    assert lines[start + 3 : start + 6] == [
        "  Number of Graph Inputs: 2",
        "  Number of Graph Outputs: 1",
        "Python Frame Triggered Execution: ",
    ]
    assert re.fullmatch(r"  <module> \(<string>:\d+\)", lines[start + 6])
    (again,) = [line for line in lines if line.startswith("compile #")]
    assert re.fullmatch(r"compile #2 of <string>:\d+ \(.*s\): aten::mul.Tensor was added \(<string>:\d+\)", again)
    assert sum(line.startswith("unplanned sync at <string>:") for line in lines) == 2


def test_executions_of_compiled_functions_are_reported(forked_process, tmp_path):
    path = tmp_path / "report.txt"
    code = """
compiled = torch.compile(torch.cos, backend="openxla")
for x in (torch.rand(4), torch.rand(4).to("xla")):
    compiled(x)
    compiled(x)
"""
    forked_process(_PRELUDE + code, PT_XLA_DEBUG_LEVEL="2", PT_XLA_DEBUG_FILE=str(path), **NO_CACHE)
    text = path.read_text().replace("pt-xla-profiler: ", "")
    assert text.count("Compilation Cause\n  dynamo is compiling a FX graph to HLO\n") == 2
    assert text.count("Execution Cause\n  dynamo is executing a compiled program\n") == 4
    assert "<string>" in text


def test_what_happens_too_often_is_said_at_exit(forked_process, tmp_path):
    path = tmp_path / "report.txt"
    code = """
x = torch.rand(4).to("xla")
for _ in range(12):
    x = x + 1
    x.sum().item()
    lazy_runtime.sync()
"""
    forked_process(_PRELUDE + code, PT_XLA_DEBUG_LEVEL="1", PT_XLA_DEBUG_FILE=str(path), **NO_CACHE)
    last = path.read_text().splitlines()[-1]
    assert last == "pt-xla-profiler: TransferFromDeviceTime too frequent: 12 counts during 12 steps"


@pytest.mark.skipif(torch.__version__ < (2, 13), reason="`import torch` reads TORCH_LOGS before it loads any backend")
def test_torchs_logs(fresh_process, tmp_path):
    path = tmp_path / "torch_logs.txt"
    fresh_process(_PRELUDE + _LOOP, TORCH_LOGS="xla_recompiles,xla_syncs", TORCH_LOGS_OUT=str(path), **NO_CACHE)
    text = path.read_text()
    assert len(re.findall(r"\[__xla_recompiles\] compile #2 of <string>:\d+", text)) == 1
    assert re.search(r"aten::mul\.Tensor was added \(<string>:\d+\)", text)
    assert len(re.findall(r"\[__xla_syncs\] unplanned sync at <string>:\d+", text)) == 2
