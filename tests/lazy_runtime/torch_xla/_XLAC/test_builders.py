import torch

from lazy_runtime.torch_xla import _XLAC


def test_the_builder_by_its_c_names():
    builder = _XLAC._xla_op_create_builder("sum")
    x = torch.ones(3, device="xla")
    shape = _XLAC._xla_op_tensor_shape(x, "")
    assert shape == {"type": "f32", "sizes": (3,)}
    first, second = (_XLAC._xla_op_param(builder, number, shape) for number in range(2))
    assert isinstance(first, _XLAC.XlaOp)
    root = _XLAC._xla_op_create(builder, "Add", [first, second], {})
    assert _XLAC._xla_op_builder(root) is builder
    assert _XLAC._xla_op_shape(root) == shape
    made = _XLAC._xla_op_build("sum", root)
    assert isinstance(made, _XLAC.XlaComputation)
    assert isinstance(builder, _XLAC.XlaBuilder)
    assert "add(" in _XLAC._xla_computation_text(made)
    assert _XLAC._xla_user_computation("xla::sum", [x, x], made)[0].tolist() == [2] * 3
    again = _XLAC._xla_op_computation_from_module_proto("again", made.hlo_proto)
    assert _XLAC._xla_user_computation("xla::sum", [x, x], again)[0].tolist() == [2] * 3
