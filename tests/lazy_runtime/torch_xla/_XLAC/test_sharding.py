"""Names about shardings that stand for functions of `xr` and `xs`."""

from __future__ import annotations

import pytest
import torch

from lazy_runtime.torch_xla import _XLAC


def test_devices_become_one_and_shardings_come_off(forked_process):
    printed = forked_process(
        """
        import torch
        import lazy_runtime
        from lazy_runtime.torch_xla import _XLAC, runtime as xr
        from lazy_runtime.torch_xla.distributed import spmd as xs
        print(_XLAC._xla_get_spmd_config_is_locked(), xr.is_spmd())
        _XLAC._xla_force_spmd_device()
        x = torch.arange(8.0, device="xla").reshape(4, 2)
        xs.mark_sharding(x, xs.Mesh(range(4), (4, 1), ("a", "b")), ("a", None))
        before = _XLAC._get_xla_sharding_spec(x)
        _XLAC._xla_clear_sharding(x)
        print(_XLAC._xla_get_spmd_config_is_locked(), xr.is_spmd(), before != _XLAC._get_xla_sharding_spec(x))
        print(x.sum().item())
        """,
        CPU_NUM_DEVICES="4",
        PJRT_DEVICE="CPU",
    )
    assert printed.splitlines() == ["False False", "True True True", "28.0"]


def test_shardings_are_not_found_automatically():
    with pytest.raises(NotImplementedError, match="mark_sharding"):
        _XLAC._xla_set_auto_sharding()


def test_marks_and_custom_calls_have_their_older_names():
    x = torch.ones(3, device="xla")
    assert _XLAC._xla_mark_tensor(x, "pattern", 0, "0", True, None).tolist() == [1, 1, 1]
    found = _XLAC._xla_custom_call([x], "target_of_nobody", [[3]], [torch.float32], False, "", 0, {})
    assert (found.shape, found.dtype) == ((3,), torch.float32)
    assert "target_of_nobody" in _XLAC._get_xla_tensors_hlo([found])
