"""The immutable tensor inside torch's functional wrapper, and how it is reached."""

from __future__ import annotations

import pytest
import torch

import lazy_runtime
from lazy_runtime.ir.graph import Handle, Value
from lazy_runtime.ir.spec import TensorSpec
from lazy_runtime.platform import xla_devices
from lazy_runtime.tensor import xla_tensor as tensor
from lazy_runtime.tensor.xla_tensor import XLATensor, from_array, make, rebind, to_user, unwrap, values_of


@pytest.fixture(params=["native", "python"], autouse=True)
def implementation(request, monkeypatch):
    if request.param == "python":  # where it was built without Python's headers
        monkeypatch.setattr(tensor, "_many", tensor.InPython)
        monkeypatch.setattr(tensor, "_inner_tensor", tensor.InPython.inner_tensor)


def spec(shape, stride=None, dtype=torch.float32, offset=0):
    return TensorSpec.of(xla_devices.get(torch.device("xla:0")), dtype, shape, stride, offset)


def test_a_users_tensor_is_a_plain_one():
    x = torch.ones(3, device="xla")
    assert type(x) is torch.Tensor
    assert type(unwrap(x)) is XLATensor


@pytest.mark.parametrize(
    "wanted",
    [
        ((2, 3), None, torch.float32, 0),
        ((2, 3), (1, 2), torch.bfloat16, 0),
        ((5, 2), (0, 1), torch.int64, 7),
        ((), None, torch.bool, 0),
        ((0, 4), None, torch.complex64, 0),
    ],
)
def test_a_tensor_looks_as_its_spec_says(wanted):
    look = spec(*wanted)
    made = make(Handle(Value(None, 0)), look)
    assert made.device == torch.device("xla:0")
    assert (made.shape, made.stride(), made.dtype) == (look.shape, look.stride, look.dtype)
    assert made.storage_offset() == look.offset


def test_a_tensor_in_words_is_not_read():
    made = make(Handle(Value(None, 0)), spec((2, 3)))
    assert repr(made) == "XLATensor(float32[2,3] on xla:0)"


def test_a_buffer_is_wrapped_and_not_copied():
    x = unwrap(torch.arange(3.0).to("xla"))
    y = from_array(x.handle.value.array, x.spec)
    assert y.handle is not x.handle
    assert y.handle.value.array is x.handle.value.array
    assert to_user(y).tolist() == [0, 1, 2]


def test_what_is_unwrapped_already_stays_itself():
    inner = unwrap(torch.ones(3, device="xla"))
    assert unwrap(inner) is inner


def test_a_write_gives_the_wrapper_another_tensor():
    x = torch.zeros(3, device="xla")
    before = unwrap(x)
    x.add_(1)
    after = unwrap(x)
    assert after is not before
    assert to_user(before).tolist() == [0, 0, 0]
    assert to_user(after).tolist() == [1, 1, 1]


@pytest.mark.parametrize("read", [lambda x: unwrap(x).handle.value, lambda x: values_of([x])[0]])
def test_a_write_through_an_alias_is_applied_when_its_base_is_unwrapped(read):
    x = torch.zeros(3, device="xla")
    before = read(x)
    alias = x[1:]
    alias.fill_(5)
    after = read(x)
    assert after is not before
    assert to_user(make(after.owner(), spec((3,)))).tolist() == [0, 5, 5]


def test_values_come_in_the_order_of_their_tensors():
    xs = [torch.full((2,), float(number), device="xla") for number in range(4)]
    assert values_of(xs) == [unwrap(x).handle.value for x in xs]
    assert values_of(xs[::-1]) == values_of(xs)[::-1]
    assert values_of([]) == []


@pytest.mark.parametrize("in_python", [False, True])
def test_what_subclasses_of_others_hold_is_unwrapped_already(in_python, monkeypatch):
    if in_python:
        monkeypatch.setattr(tensor, "_many", tensor.InPython)
    x = torch.ones(2, device="xla")
    assert values_of([unwrap(x), x]) == 2 * [unwrap(x).handle.value]
    assert tensor.Unchanged([unwrap(x), x]).of([unwrap(x), x])


def test_a_tensor_that_is_rebound_has_another_value():
    x = torch.zeros(3, device="xla")
    inner, other = unwrap(x), unwrap(x + 7)
    rebind(inner, other.handle)
    assert unwrap(x) is inner
    assert x.tolist() == [7, 7, 7]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_tensors_of_other_devices_are_refused(device):
    x = torch.ones(3, device=device)
    with pytest.raises(TypeError, match=f"expected a tensor on an xla device, got one on {device}"):
        unwrap(x)
    with pytest.raises(TypeError, match=f"expected a tensor on an xla device, got one on {device}"):
        values_of([torch.ones(3, device="xla"), x])


def test_a_functional_tensor_of_another_device_is_refused():
    x = tensor.to_functional(torch.ones(3))
    with pytest.raises(TypeError, match="expected a tensor on an xla device, got one on cpu"):
        unwrap(x)


def test_a_wrapper_is_made_once_however_often_a_tensor_is_read():
    x = torch.ones(3, device="xla") * 2
    inner = unwrap(x)
    lazy_runtime.sync()
    x.tolist()
    assert unwrap(x) is inner
