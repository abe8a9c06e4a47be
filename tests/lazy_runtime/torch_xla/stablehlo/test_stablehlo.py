"""Exported programs as StableHLO: saved, loaded and run."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from torch.export import Dim, export

import lazy_runtime.torch_xla as torch_xla
from lazy_runtime.torch_xla import _XLAC, stablehlo


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4).eval()
        self.register_buffer("narrow", torch.arange(4, dtype=torch.bfloat16))

    def forward(self, x, unused):
        y = self.norm(torch.relu(self.layer(x))) + self.narrow / torch.tensor(3)
        return {"y": y, "top": torch.topk(y, 2)[1]}


def example():
    return torch.randn(5, 3), torch.ones(2)


def same(found, expected):
    assert found.keys() == expected.keys()
    torch.testing.assert_close(found["y"].cpu(), expected["y"])
    assert torch.equal(found["top"].cpu(), expected["top"])


def test_a_model():
    model, args = Model().eval(), example()
    expected = model(*args)
    made = stablehlo.exported_program_to_stablehlo(export(model, args))
    same(made(*args), expected)
    same(made.evaluate("forward", [x.to("xla") for x in args]), expected)
    text = made.get_stablehlo_text()
    assert "stablehlo.dot_general" in text
    assert "custom_call" not in text.replace("custom_call @mhlo.topk", "")  # no kernels of torch's
    assert made.get_stablehlo_bytecode("forward")[:4] == b"ML\xefR"
    meta = made._bundle.stablehlo_funcs[0].meta
    kinds = {location.type_ for location in meta.input_locations}
    assert kinds == {*stablehlo.VariableType} or kinds == {*stablehlo.VariableType} - {stablehlo.VariableType.CONSTANT}
    assert [(location.position, signature.shape) for location, signature in meta.unused_inputs] == [(1, [2])]
    with pytest.raises(KeyError, match="there is no function 'other'"):
        made.get_stablehlo_text("other")


class Results(nn.Module):
    def forward(self, x, y):
        return x, torch.stack([x, y]), torch.stack([x, y], 1).flatten(), y + 1, x


def test_results_that_are_arguments_or_views(tmp_path):
    args = torch.randn(3, 4), torch.randn(3, 4)
    stablehlo.save_torch_model_as_stablehlo(Results(), args, tmp_path)
    found = stablehlo.StableHLOGraphModule.load(tmp_path)(*args)
    for mine, expected in zip(found, Results()(*args), strict=True):
        assert torch.equal(mine.cpu(), expected)


def test_files(tmp_path):
    model, args = Model().eval(), example()
    expected = model(*args)
    torch_xla.save_as_stablehlo(export(model, args), tmp_path / "a")
    loaded = stablehlo.StableHLOGraphModule.load(tmp_path / "a")
    same(loaded(*args), expected)
    assert (tmp_path / "a/functions/forward.mlir").exists()
    options = stablehlo.StableHLOExportOptions(save_weights=False, include_human_readable_text=False)
    torch_xla.save_torch_model_as_stablehlo(model, args, tmp_path / "b", options)
    loaded = stablehlo.StableHLOGraphModule.load(tmp_path / "b")
    assert (loaded._bundle.state_dict, loaded.get_stablehlo_text()) == ({}, None)
    assert not (tmp_path / "b/data").exists()
    with pytest.raises(KeyError, match="exported or saved without its weights"):
        loaded(*args)
    with pytest.raises(FileNotFoundError, match="there is no function in"):
        stablehlo.StableHLOGraphModule.load(tmp_path)


def test_options_and_refusals():
    model, args = Model().eval(), example()
    program = export(model, args)
    options = stablehlo.StableHLOExportOptions(export_weights=False, override_tracing_arguments=args)
    assert stablehlo.exported_program_to_stablehlo(program, options)._bundle.state_dict == {}
    with pytest.raises(NotImplementedError, match="export_node_metadata"):
        stablehlo.exported_program_to_stablehlo(program, stablehlo.StableHLOExportOptions(export_node_metadata=True))
    dynamic = export(nn.ReLU(), (torch.ones(4, 2),), dynamic_shapes=({0: Dim("n")},))
    with pytest.raises(NotImplementedError, match="has symbolic sizes"):
        stablehlo.exported_program_to_stablehlo(dynamic)
    random = export(nn.Dropout(), (torch.ones(4, 2),))
    with pytest.raises(NotImplementedError, match="draws random numbers"):
        stablehlo.exported_program_to_stablehlo(random)


def test_operators_of_ones_own():
    library = torch.library.Library("lazy_runtime_test_export", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", torch.empty_like, "Meta")

    class Calls(nn.Module):
        def forward(self, x):
            return torch.ops.lazy_runtime_test_export.twice(x.sin()).cos()

    options = stablehlo.StableHLOExportOptions(custom_ops_allowed_in_graph={"lazy_runtime_test_export"})
    made = stablehlo.exported_program_to_stablehlo(export(Calls(), (torch.ones(3),)), options)
    assert "stablehlo.custom_call @lazy_runtime_test_export.twice.default" in made.get_stablehlo_text()
    library.impl("twice", lambda x: x * 2, "XLA")
    made = stablehlo.exported_program_to_stablehlo(export(Calls(), (torch.ones(3),)))
    torch.testing.assert_close(made(torch.ones(3)).cpu(), torch.cos(2 * torch.sin(torch.ones(3))))


def test_what_is_written_down():
    location = stablehlo.InputLocation.parameter("w")
    assert stablehlo.InputLocation.input_arg(1).position == 1
    assert stablehlo.InputLocation.constant(2).type_ is stablehlo.VariableType.CONSTANT
    signature = stablehlo.VariableSignature([2], "float32")
    meta = stablehlo.StableHLOFunctionMeta("f", "1.0", [signature], [signature], [location], [(location, signature)])
    text = json.dumps(meta, cls=stablehlo.StableHLOJSONSerializer)
    found = json.loads(text, object_hook=stablehlo.stablehlo_obj_hook)
    assert found.input_locations == [location]
    assert found.output_signature == [signature]
    assert stablehlo.stablehlo_obj_hook({"a": 1}) == {"a": 1}
    function = stablehlo.StableHLOFunc(meta, b"", None)
    assert stablehlo.StableHLOModelBundle({}, [], [function]).stablehlo_funcs == [function]
    with pytest.raises(TypeError):
        json.dumps(object(), cls=stablehlo.StableHLOJSONSerializer)


def test_a_program_is_run_on_the_device():
    library = torch.library.Library("lazy_runtime_test_interpreter", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", torch.empty_like, "Meta")

    class Calls(nn.Module):
        def forward(self, x):
            return torch.ops.lazy_runtime_test_interpreter.twice(x + torch.arange(3))

    module = export(Calls(), (torch.ones(3),)).graph_module
    interpreter = stablehlo.XLAExportInterpreter(module, torch.device("xla:0"), {"lazy_runtime_test_interpreter"}, None)
    (made,) = interpreter.run(torch.ones(3).to("xla"), enable_io_processing=False)
    assert made.device.type == "xla"
    assert "custom_call @lazy_runtime_test_interpreter.twice.default" in _XLAC._get_stablehlo([made])
    del made  # which nothing can run
    interpreter.env.clear()
    nodes = {node.name: node for node in module.graph.nodes}
    found = interpreter.run_node(nodes["arange"])
    assert found.device == torch.device("xla:0")
    assert found.tolist() == [0, 1, 2]
    interpreter.env = {nodes["x"]: torch.full((3,), 2.0).to("xla"), nodes["arange"]: found}
    assert interpreter.run_node(nodes["add"]).tolist() == [2.0, 3.0, 4.0]
