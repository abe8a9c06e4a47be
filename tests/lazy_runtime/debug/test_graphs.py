import re
import threading

import pytest
import torch

import lazy_runtime
from lazy_runtime.common import metrics
from lazy_runtime.debug import graph_saver, graphs


def make():
    weight, x = torch.rand(8, 8).to("xla"), torch.rand(4, 8).to("xla")
    y = (x @ weight) * 3.5 + 1
    return torch.max(y, 1)[0].sum(), weight


def test_text_is_pytorch_xlas_ir():
    result, weight = make()
    text = graphs.text([result, weight])
    assert [re.sub(r", location=[^,]*", "", line) for line in text.splitlines()] == [
        "IR {",
        "  %0 = f32[4,8]{1,0} xla::device_data(), device=CPU:0",
        "  %1 = f32[8,8]{1,0} xla::device_data(), device=CPU:0, ROOT=1",
        "  %2 = f32[4,8]{1,0} aten::mm(%0, %1)",
        "  %3 = f32[4,8]{1,0} aten::mul.Tensor(%2), other=3.5",
        "  %4 = f32[4,8]{1,0} aten::add.Tensor(%3), other=1",
        "  %5 = (f32[4]{0}, s64[4]{0}) aten::max.dim(%4), dim=1",
        "  %6 = f32[] aten::sum(%5.0), ROOT=0",
        "}",
    ]
    assert metrics.value("ExecuteComputation") == 0


def test_only_what_the_tensors_wait_for_is_shown():
    x = torch.rand(4).to("xla")
    wanted, other = x.cos(), x.sin()
    assert "sin" not in graphs.text([wanted])
    assert "cos" in graphs.stablehlo()
    assert "sin" in graphs.stablehlo()  # everything
    assert other.shape == (4,)


def test_compiled_calls_are_shown_as_their_operators():
    weight = torch.rand(4, 4).to("xla").requires_grad_()
    compiled = torch.compile(lambda x, w: torch.dropout(x @ w, 0.5, True).tanh(), backend="openxla")
    loss = compiled(torch.rand(2, 4).to("xla"), weight).sum()
    loss.backward()
    text = graphs.text([loss, weight.grad])
    (tanh,) = re.findall(r"%(\d+) = f32\[2,4\]\{1,0\} aten::tanh\(", text)
    assert re.search(rf"aten::sum\(%{tanh}\), ROOT=0", text)
    assert re.search(rf"aten::tanh_backward\(%\d+, %{tanh}\)", text)
    assert text.count(" aten::mm(") == 2
    assert re.search(r"seed=-?\d+", text)
    assert text.rstrip().endswith("ROOT=1\n}")
    lazy_runtime.sync()


_STATEMENT = re.compile(r'  node\d+( -> node\d+)?( \[label="(?:[^"\\]|\\.)*"\])?')  # of the dot language


def test_dot_is_a_graph_of_the_same_parts():
    result, weight = make()
    first, *statements, last = graphs.dot([result, weight]).splitlines()
    assert (first, last) == ("digraph G {", "}")
    assert all(_STATEMENT.fullmatch(line) for line in statements)
    edges = [line for line in statements if "->" in line]
    assert len(statements) - len(edges) == 7
    assert '  node1 -> node2 [label="i=1"]' in edges
    assert '  node5 -> node6 [label="o=0"]' in edges


def test_hlo_and_stablehlo_are_xlas_own():
    result, _ = make()
    assert graphs.hlo([result]).startswith("HloModule")
    assert "stablehlo.dot_general" in graphs.stablehlo([result])
    bytecode = graphs.stablehlo_bytecode([result])
    assert bytecode[:4] == b"ML\xefR"  # MLIR's magic number


def test_a_tensor_with_data_is_a_leaf_and_a_result():
    x = torch.rand(4).to("xla") + 1
    lazy_runtime.sync()
    text = graphs.text([x])
    assert text.startswith("IR {\n  %0 = f32[4]{0} xla::device_data()")
    assert text.endswith("ROOT=0\n}\n")
    assert graphs.hlo([x]).startswith("HloModule")


def test_tensors_of_no_or_another_device_are_refused():
    with pytest.raises(ValueError, match="expected tensors on one xla device, got 0"):
        graphs.text([])
    with pytest.raises(TypeError, match="expected a tensor on an xla device, got one on cpu"):
        graphs.text([torch.rand(3)])


def test_each_saved_graph_has_a_file(tmp_path, monkeypatch):
    result, _ = make()
    for form in ("", "hlo", "dot"):
        monkeypatch.setenv("SAVE_GRAPH_FMT", form)
        graph_saver.save_tensors_graph(tmp_path, "loss", [result])
    first, second, third = sorted(tmp_path.iterdir(), key=lambda path: path.name.rsplit("-", 1)[1])
    assert first.name == f"loss-{threading.get_ident()}-0.text"
    assert first.read_text() == graphs.text([result])
    assert second.name.endswith("-1.hlo")
    assert second.read_text().startswith("HloModule")
    assert third.name.endswith("-2.dot")
    assert third.read_text().startswith("digraph G {")
