"""Callbacks, marks, quantisation, custom calls, plugins."""

from __future__ import annotations

import json
import threading

import pytest
import torch

from lazy_runtime.torch_xla import _XLAC
from lazy_runtime.torch_xla.core import xla_model as xm
from lazy_runtime.torch_xla.experimental import (
    callback,
    dynamo_mark_sharding,
    mark_pattern_utils,
    plugins,
    quantized,
    stablehlo_custom_call,
    xla_marker,
)


def test_callbacks():
    x = torch.ones(3, device="xla") * 2
    seen, done = [], threading.Event()
    callback.on_ready_callback(x, lambda tensor: (seen.append(tensor), done.set()))
    assert done.wait(10)
    assert seen[0] is x
    assert callback.on_ready_event(x + 1).wait(10)


def test_quantisation():
    x, scale, zero = torch.randn(3, 4), torch.tensor([0.1, 0.2, 0.3]), torch.tensor([1, 0, -2])
    whole = quantized.xla_quantize_per_tensor(x.to("xla"), 0.1, 3, -128, 127, torch.int8)
    expected = torch.clamp(torch.round(x / 0.1) + 3, -128, 127).to(torch.int8)
    assert torch.equal(whole.cpu(), expected)
    found = quantized.xla_dequantize_per_tensor(whole, 0.1, 3, -1, -128, 127, torch.int8)
    torch.testing.assert_close(found.cpu(), (expected.float() - 3) * 0.1)
    rows = quantized.xla_quantize_per_channel(x.to("xla"), scale, zero, 0, -128, 127, torch.int8)
    expected = torch.clamp(torch.round(x / scale[:, None]) + zero[:, None], -128, 127).to(torch.int8)
    assert torch.equal(rows.cpu(), expected)
    found = quantized.xla_dequantize_per_tensor(rows, scale, zero, 0, -128, 127, torch.int8)
    torch.testing.assert_close(found.cpu(), (expected - zero[:, None]).float() * scale[:, None])


def test_marks():
    builder = mark_pattern_utils.StableHLOCompositeBuilder("test.add", {"k": [1, 2], "name": "x"})
    for device in ("cpu", "xla"):
        a, b = torch.ones(2, device=device, requires_grad=True), torch.ones(2, device=device)
        one, other = builder.mark_inputs(a, b)
        found = builder.mark_outputs(one + other)
        assert found.tolist() == [2.0, 2.0]
        found.sum().backward()
        assert a.grad.tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="expected tensors, got 1"):
        builder.mark_inputs(1)
    attributes = xla_marker.serialize_composite_attr({"a": 1.0})
    assert xla_marker.deserialize_composite_attr(attributes) == {"a": 1.0}
    assert xla_marker.deserialize_composite_attr(xla_marker.serialize_composite_attr(None)) is None
    for wrong, match in (([], "dictionary"), ({1: 2}, "name must be"), ({"a": [1, "b"]}, "value of 'a'")):
        with pytest.raises(ValueError, match=match):
            xla_marker.serialize_composite_attr(wrong)
    metadata = xla_marker.BoundaryMetadata("p", 0, "1", True, {"a": 1})
    text = json.dumps(metadata, cls=xla_marker.BoundaryMetadataSerializer)
    assert json.loads(text) == {"name": "p", "pos": 0, "id": "1", "is_input": True, "attr": {"a": 1}}
    marked = xla_marker.mark_tensor(torch.ones(2, device="xla"), "p", 0, "7", False, attributes)
    assert "optimization_barrier" in xm.get_stablehlo([marked])
    assert xla_marker.mark_tensor_xla(torch.ones(2, device="xla"), "p", 0, "7", True).tolist() == [1.0, 1.0]


def test_custom_calls():
    x = torch.ones(4, device="xla")
    made = stablehlo_custom_call.stablehlo_custom_call((x,), "my_target", [(4,)], [torch.int8], True, "config", 1)
    text = xm.get_stablehlo([made])
    assert "stablehlo.custom_call @my_target" in text
    assert 'backend_config = "config", has_side_effect = true' in text
    assert "tensor<4xi8>" in text
    del made
    with pytest.raises(ValueError, match=r"'t'\): expected at least one input tensor"):
        stablehlo_custom_call.stablehlo_custom_call((), "t", [(4,)], [torch.int8])
    several = stablehlo_custom_call.stablehlo_custom_call((x,), "t", [(4,), (2,)], [torch.int8, torch.float32])
    assert [each.shape for each in several] == [(4,), (2,)]
    del several
    for function, where in (
        (stablehlo_custom_call.place_to_host, "pinned_host"),
        (stablehlo_custom_call.place_to_device, "device"),
    ):
        x = torch.ones(4, device="xla", requires_grad=True)
        placed = function(x)
        assert f'_xla_buffer_placement = "{where}"' in xm.get_stablehlo([placed])
        assert placed.tolist() == [1.0] * 4
        placed.sum().backward()
        assert x.grad.tolist() == [1.0] * 4
        assert function(None) is None
        assert function(torch.ones(2)).tolist() == [1.0, 1.0]
    assert stablehlo_custom_call.to_host_backward(None, x) is x
    assert stablehlo_custom_call.to_device_backward(None, x) is x


def test_looks_of_nodes():
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    node.meta["val"] = [torch.ones(2), torch.ones(3, dtype=torch.int8)]
    shapes, dtypes = stablehlo_custom_call.extract_custom_call_outputs_shape_dtype(node)
    assert (shapes, dtypes) == ([(2,), (3,)], [torch.float32, torch.int8])
    node.meta["val"] = 1
    with pytest.raises(ValueError, match="expected a traced node that gives tensors"):
        stablehlo_custom_call.extract_custom_call_outputs_shape_dtype(torch.fx.Graph().placeholder("y"))


def test_plugins():
    for call in (plugins.DevicePlugin, plugins.default, lambda: plugins.register_plugin("a", None)):
        with pytest.raises(NotImplementedError, match="entry point `jax_plugins`"):
            call()
    plugins.use_dynamic_plugins()
    assert plugins.using_dynamic_plugins()


def test_dynamos_mark():
    x = torch.ones(4, device="xla", requires_grad=True)
    found = torch.ops.xla.dynamo_mark_sharding(x, [0], [1], "('a',)", "('a',)")
    assert found.tolist() == [1.0] * 4
    found.sum().backward()
    assert x.grad.tolist() == [1.0] * 4
    assert dynamo_mark_sharding.dynamo_mark_sharding(x, [0], [1], "None", "(0,)").shape == (4,)
    assert _XLAC._get_xla_sharding_spec(x) == ""
