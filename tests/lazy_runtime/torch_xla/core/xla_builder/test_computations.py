import jax
import numpy as np
import pytest
import torch

import lazy_runtime
from lazy_runtime.torch_xla.core import xla_builder as xb


def make():
    return xb.create_computation("sums", lambda x, y: xb.Op.tuple((x + y, x @ y)), [xb.mkshape("f32", (4, 4))] * 2)


def test_hlo():
    text = xb.get_computation_hlo(make())
    assert "sums" in text
    assert "f32[4,4]{1,0} add(" in text
    assert " dot(" in text


def test_of_an_hlo_module():
    made = xb.computation_from_module_proto("again", make().hlo_proto)
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    found = xb.xla_computation_as_func(made, "again")([x.to("xla"), y.to("xla")])
    torch.testing.assert_close([each.cpu() for each in found], [x + y, x @ y])
    assert " add(" in xb.get_computation_hlo(made)


def test_of_an_hlo_module_of_jax_with_unused_and_wide_parameters():
    lowered = jax.jit(lambda a, b: a * 2, keep_unused=True).lower(np.ones(3, np.int32), np.ones(2, np.uint8))
    proto = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    made = xb.computation_from_module_proto("doubled", proto)
    given = [torch.tensor([1, 2, 3], dtype=torch.int32, device="xla"), torch.ones(2, dtype=torch.uint8, device="xla")]
    (found,) = xb.user_computation("doubled", given, made)
    assert found.tolist() == [2, 4, 6]
    assert found.dtype is torch.int32


def test_of_stablehlo_text():
    text = """func.func @main(%x: tensor<2xi1>) -> tensor<2xi1> {
        %y = stablehlo.not %x : tensor<2xi1>
        return %y : tensor<2xi1>
    }"""
    (found,) = xb.xla_computation_as_func(xb.from_stablehlo("not", text))([torch.tensor([True, False], device="xla")])
    assert found.tolist() == [False, True]
    with pytest.raises(ValueError, match="no function `main`"):
        xb.from_stablehlo("none", text.replace("@main", "@other"))


def test_other_tensors_are_refused_by_their_shapes():
    function = xb.xla_computation_as_func(make())
    with pytest.raises(
        RuntimeError, match=r"takes float32\[4, 4\], float32\[4, 4\], got float32\[4, 4\], int64\[4, 4\]"
    ):
        function([torch.ones(4, 4, device="xla"), torch.ones(4, 4, device="xla").long()])


def test_without_operands():
    builder = xb.create_builder("constant")
    made = xb.Op.scalar(builder, 3, xb.Type.S32).build("constant")
    (found,) = xb.xla_computation_as_func(made)([])
    assert found.device.type == "xla"
    assert found.item() == 3


def test_is_one_operator_of_the_program():
    x = torch.ones(4, 4, device="xla")
    lazy_runtime.sync()
    y = xb.xla_computation_as_func(make())([x, x])[0] + 1
    text = lazy_runtime.torch_xla._XLAC._get_xla_tensors_text([y])
    assert text.count("lazy_runtime::computation") == 1
    assert y.sum().item() == 48


def test_as_many_tensors_as_parameters():
    with pytest.raises(RuntimeError, match="takes 2 tensors, got 0"):
        xb.xla_computation_as_func(make())([])
