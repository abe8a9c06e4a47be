import pytest

import lazy_runtime
from lazy_runtime.torch_xla import _XLAC
from lazy_runtime.torch_xla import runtime as xr


def test_devices_of_the_process_and_of_the_job():
    real = lazy_runtime.real_devices()
    assert _XLAC._xla_get_runtime_devices() == _XLAC._xla_get_all_runtime_devices() == real
    assert _XLAC._xla_num_runtime_devices() == _XLAC._xla_num_global_devices() == len(real)
    assert (_XLAC._xla_get_num_processes(), _XLAC._xla_get_process_index()) == (1, 0)
    assert _XLAC._xla_get_device_ordinal("xla:0") == 0
    assert _XLAC._xla_get_device_attributes("xla:0") == _XLAC._xla_get_all_device_attributes()[0]
    assert _XLAC._xla_device_kind() == _XLAC._xla_device_kind("xla:0") != ""
    assert _XLAC._xla_get_platform_version()
    assert xr.device_type() == real[0].partition(":")[0]


def test_replicas_are_noted():
    real = lazy_runtime.real_devices()
    _XLAC._xla_set_replication_devices(real)
    assert _XLAC._xla_get_replication_devices() == real
    assert _XLAC._xla_get_replication_devices_count() == len(real)
    _XLAC._xla_set_replication_devices([])
    assert _XLAC._xla_get_replication_devices_count() == 0
    with pytest.raises(ValueError, match="CPU:99"):
        _XLAC._xla_set_replication_devices(["CPU:99"])


def test_plugins_are_jaxs():
    with pytest.raises(NotImplementedError, match="jax_plugins"):
        _XLAC._register_pjrt_plugin("MINE", object())


def names() -> tuple[list[str], list[str]]:
    return _XLAC._xla_get_devices(), _XLAC._xla_get_all_devices()


def test_devices_of_all_processes(ranks):
    found = ranks(2)(names)
    assert [len(own) for own, _ in found] == [1, 1]
    assert found[0][1] == found[1][1]
    assert len(set(found[0][1])) == 2
    assert _XLAC._xla_get_all_devices() == lazy_runtime.real_devices()
