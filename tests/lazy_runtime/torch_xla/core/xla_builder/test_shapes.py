import pytest
import torch

from lazy_runtime.torch_xla.core import xla_builder as xb


def test_of_arrays():
    shape = xb.Shape.create("f32", (2, 3))
    assert (shape.dtype, shape.sizes, shape.rank) == ("f32", (2, 3), 2)
    assert shape.shape == {"type": "f32", "sizes": (2, 3)}
    assert not shape.is_tuple()
    assert not shape.is_dynamic()
    assert shape.dynamic_dimensions is None
    assert shape.as_scalar() == xb.mkshape("f32", ())
    with pytest.raises(TypeError, match="has no elements"):
        shape.tuple_size()


def test_of_tuples():
    builder = xb.create_builder("b")
    x = xb.mkparam(builder, 0, xb.mkshape("s32", (4,)))
    shape = xb.Op.tuple((x, xb.Op.tuple((x,)))).shape()
    assert shape.is_tuple()
    assert shape.tuple_size() == 2
    assert xb.Shape(shape.tuple_shape(0)) == xb.mkshape("s32", (4,))
    assert xb.Shape(shape.tuple_shape(1)).tuple_size() == 1
    with pytest.raises(TypeError, match="a tuple has no element type"):
        shape.dtype  # noqa: B018


def test_of_tensors():
    assert xb.tensor_shape(torch.ones(2, 3, dtype=torch.bfloat16)) == xb.mkshape("bf16", (2, 3))
    assert xb.tensor_shape([torch.ones(2), torch.ones(1).bool()], "") == [
        xb.mkshape("f32", (2,)),
        xb.mkshape("pred", (1,)),
    ]


def test_types():
    names = [name for key, name in vars(xb.Type).items() if key.isupper()]
    assert len(names) == 15
    for name in names:
        assert xb.Op.from_torch_type(xb.Op.to_torch_type(name)) == name
    assert xb.Op.to_torch_type(None) is torch.float32
    with pytest.raises(TypeError, match="no element type"):
        xb.Op.to_torch_type("f31")
    with pytest.raises(TypeError, match="has no element type"):
        xb.Op.from_torch_type(torch.quint8)
