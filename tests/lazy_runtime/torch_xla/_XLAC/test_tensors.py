import threading

import pytest
import torch

import lazy_runtime
from lazy_runtime.common import metrics
from lazy_runtime.torch_xla import _XLAC


def test_numbers_of_tensors():
    x, y = torch.ones(4, device="xla"), torch.ones(4, device="xla")
    number = _XLAC._xla_get_tensor_id(x)
    assert number == _XLAC._xla_get_tensor_id(x[:2]) == _XLAC._xla_get_tensor_view_alias_id(x.view(2, 2))
    assert number != _XLAC._xla_get_tensor_id(y)
    x.add_(1)
    lazy_runtime.sync()
    assert _XLAC._xla_get_tensor_id(x) == number
    with pytest.raises(RuntimeError, match="expected an xla device"):
        _XLAC._xla_get_tensor_id(torch.ones(1))


def test_values_of_tensors():
    x = torch.ones(4, device="xla")
    same = x.detach()
    assert _XLAC._unique_id_for_ir_and_data(x) == _XLAC._unique_id_for_ir_and_data(same)
    handles = _XLAC._get_tensors_handle([x, same, x + 1])
    assert handles[0] == handles[1] != handles[2]
    x.add_(1)
    assert _XLAC._unique_id_for_ir_and_data(x) == _XLAC._unique_id_for_ir_and_data(same)  # it is a view


def test_what_waits_for_a_program():
    x = torch.ones(4).to("xla")
    y = x + 1
    assert _XLAC._check_tensor_need_materialization([x, y, torch.ones(1)]) == [False, True, False]
    assert _XLAC._check_device_tensor_need_materialization("xla:0") == [True]
    lazy_runtime.sync()
    assert _XLAC._check_tensor_need_materialization([y]) == [False]
    assert _XLAC._check_device_tensor_need_materialization("") == []


def test_what_is_known_of_a_tensor():
    assert _XLAC._get_xla_tensor_debug_info(torch.ones(1)) == "Not a XLATensor\n"
    x = torch.ones(4).to("xla") + 5
    pending = _XLAC._get_xla_tensor_debug_info(x)
    assert "XLA Shape: f32[4]" in pending
    assert "aten::add" in pending
    assert "XLAData: None" in pending
    lazy_runtime.sync()
    ready = _XLAC._get_xla_tensor_debug_info(x)
    assert "Data Shape: f32[4]" in ready
    assert "IR: None" in ready
    assert "Data Handle: None" in _XLAC._get_xla_tensor_debug_info(_placeholder())


def _placeholder():
    return _XLAC._xla_create_placeholder_tensor({"type": "f32", "sizes": (2,)})


def test_shapes_and_types():
    x = torch.ones(2, 3, dtype=torch.float16, device="xla")
    assert _XLAC._get_xla_tensor_shape_type(x) == "f16"
    size = _XLAC._get_xla_tensor_dimension_size(x, 1)
    assert (size.item(), size.dtype, size.device) == (3, torch.int32, x.device)
    assert _XLAC._xla_get_device_hw_type(x) == lazy_runtime.real_devices()[0].partition(":")[0]
    assert _XLAC._is_placecholder(_placeholder())
    assert not _XLAC._is_placecholder(x)


def test_addresses_of_buffers():
    x = torch.arange(4.0).to("xla")
    address = _XLAC._unsafe_buffer_pointer(x)
    assert address % 4 == 0
    y = x.mul_(2)  # takes no memory that somebody has the address of
    lazy_runtime.sync()
    assert _XLAC._unsafe_buffer_pointer(y) != address
    with pytest.raises(RuntimeError, match="has no buffer"):
        _XLAC._unsafe_buffer_pointer(x + 1)


def test_copies_to_devices():
    x, y = _XLAC._xla_tensors_from_aten([torch.ones(2), torch.zeros(1, requires_grad=True)], ["xla:0", "xla:0"])
    assert (x.tolist(), y.tolist(), y.requires_grad) == ([1, 1], [0], True)


def test_one_tensor_in_place_of_another():
    x, y = torch.zeros(5, device="xla"), torch.ones(3, device="xla")
    assert _XLAC._replace_xla_tensor(x, y) is x
    assert x.tolist() == [1, 1, 1]
    y.add_(1)
    assert x.tolist() == [2, 2, 2]  # they share memory


def test_callbacks_when_a_tensor_is_computed():
    called = threading.Event()
    _XLAC._on_ready_callback(torch.ones(3, device="xla") + 1, called.set)
    assert called.wait(20)


def test_given_away_buffers():
    x, y = torch.ones(4).to("xla"), torch.ones(4).to("xla")
    assert not _XLAC._set_buffer_donation(x + 1, True)
    before = metrics.value("XlaSetBufferDonation")
    assert _XLAC._set_buffer_donation(x, True)
    assert metrics.value("XlaSetBufferDonation") == before + 1
    assert _XLAC._get_buffer_donation(x)
    assert not _XLAC._get_buffer_donation(y)
    lazy_runtime.sync()  # nothing reads it
    assert x.tolist() == [1] * 4
    z = x + y
    lazy_runtime.sync(wait=True)
    assert _XLAC._is_placecholder(x)
    assert z.tolist() == [2] * 4
    assert y.tolist() == [1] * 4
    with pytest.raises(RuntimeError, match="is deleted"):
        _XLAC._get_tensors_handle([x])
    assert "Data Handle: Deleted" in _XLAC._get_xla_tensor_debug_info(x)
    assert _XLAC._set_buffer_donation(y, True)
    assert _XLAC._set_buffer_donation(y, False)
    _ = y + 1
    lazy_runtime.sync()
    assert y.tolist() == [1] * 4


@pytest.mark.parametrize("enabled", [True, False])
def test_given_away_buffers_outside_of_a_steps_end(enabled):
    from lazy_runtime.torch_xla.utils.buffer_donor_context import alias_with_buffer_donor_config

    x = torch.ones(4).to("xla")
    _XLAC._set_buffer_donation(x, True)
    with alias_with_buffer_donor_config(enabled) as before:
        assert not before
        assert _XLAC._xla_get_enable_alias_with_buffer_donor_config() is enabled
        y = x + 1
        _XLAC._xla_sync_multi([y], [], True, sync_xla_data=False)
    assert _XLAC._is_placecholder(x) is enabled
    assert y.tolist() == [2] * 4
    assert not _XLAC._xla_get_enable_alias_with_buffer_donor_config()


def test_states_of_random_numbers():
    state = _XLAC._get_base_seed_as_tensor("xla:0")
    assert state.device.type == "xla"
    assert state.item() == _XLAC._xla_get_rng_seed()
    assert isinstance(_XLAC._get_seed_info_id(), int)


def test_names_of_operators():
    x = torch.ones(2).to("xla")
    assert not _XLAC._set_xla_custom_op_name_prefix(x, "part", 0)
    y = x + 1
    assert _XLAC._set_xla_custom_op_name_prefix(y, "part", 1)
    from lazy_runtime.tensor.xla_tensor import unwrap

    assert unwrap(y).handle.value.node.scope == "part"
