import pytest
import torch

import lazy_runtime
from lazy_runtime.common import metrics, source_locations
from lazy_runtime.torch_xla import _XLAC


def test_execution_can_be_forbidden():
    x = torch.ones(3, device="xla")
    assert _XLAC._get_allow_execution()
    _XLAC._set_allow_execution(False)
    try:
        for call in (x.cpu, lazy_runtime.sync):
            with pytest.raises(
                RuntimeError, match="Unexpected execution happens inside the compiled function, exiting"
            ):
                call()
    finally:
        _XLAC._set_allow_execution(True)
    assert x.tolist() == [1] * 3


def test_stacks_of_operators():
    x = torch.ones(3, device="xla")
    was = _XLAC._get_ir_debug()
    _XLAC._set_ir_debug(True)
    try:
        assert _XLAC._get_ir_debug()
        assert "location=test_stacks_of_operators@" in _XLAC._get_xla_tensors_text([x.sin()])
    finally:
        _XLAC._set_ir_debug(was)
    assert source_locations.keep is False
    assert "location=" not in _XLAC._get_xla_tensors_text([x.cos()]).splitlines()[-3]


def test_names_of_programs():
    assert _XLAC._get_current_graph_name() == ""
    _XLAC._set_current_graph_name("named")
    try:
        assert _XLAC._get_current_graph_name() == "named"
        assert "named" in _XLAC._get_xla_tensors_hlo([torch.ones(3, device="xla").tan()])
    finally:
        _XLAC._set_current_graph_name("")


def test_options_of_the_compiler():
    x = torch.tensor([1.0, torch.nan]).to("xla")
    _XLAC._set_custom_compile_options({"xla_no_such_option": True})
    try:
        with pytest.raises(ValueError, match="xla_no_such_option"):
            (x * 3).cpu()
        lazy_runtime.torch_xla.set_custom_compile_options({"xla_cpu_enable_fast_min_max": True})
        compiled = metrics.value("UncachedCompile")
        (x * 5).cpu()
        assert metrics.value("UncachedCompile") == compiled + 1
    finally:
        lazy_runtime.torch_xla.set_custom_compile_options({})
    (x * 5).cpu()
    assert metrics.value("UncachedCompile") == compiled + 2  # another program


def test_what_is_decided_here_is_not_switched():
    assert _XLAC._get_xla_handle_special_scalars()
    assert not _XLAC._get_xla_all_numbers_special_scalars()
    assert not _XLAC._get_xla_enable_device_data_cache()
    for setter, now, way in (
        (_XLAC._set_xla_handle_special_scalars, True, "XLA_NO_SPECIAL_SCALARS"),
        (_XLAC._set_xla_all_numbers_special_scalars, False, "torch.export"),
        (_XLAC._set_xla_enable_device_data_cache, False, "inputs of the program"),
    ):
        setter(now)
        with pytest.raises(NotImplementedError, match=way):
            setter(not now)


def test_counters():
    metrics.clear()
    _XLAC._xla_increment_counter("Made", 3)
    _XLAC._xla_increment_counter("Made", 2)
    assert _XLAC._xla_counter_value("Made") == 5
    metrics.count("aten::called")
    assert _XLAC._get_executed_fallback_ops() == ["aten::called"]


def test_the_runtime():
    _XLAC._init_computation_client()
    assert _XLAC._xla_runtime_is_initialized()
    metrics.clear()
    _XLAC._init_xla_lazy_backend()
    _XLAC._init_xla_lazy_backend()
    assert metrics.value("RegisterXLAFunctions") == 1
    x = torch.ones(3, device="xla") + 1
    lazy_runtime.sync()
    _XLAC._prepare_to_exit()
    assert x.tolist() == [2] * 3
    revisions = _XLAC._get_git_revs()
    assert lazy_runtime.__version__ in revisions["xla"]
    assert revisions["torch"] == torch.version.git_version


@pytest.mark.parametrize("level", ["default", "high", "highest"])
def test_the_precision_of_products(level):
    assert _XLAC._xla_get_mat_mul_precision() == "highest"
    x = torch.ones(3, 3).to("xla")
    _XLAC._xla_set_mat_mul_precision(level)
    try:
        assert _XLAC._xla_get_mat_mul_precision() == level
        text = _XLAC._get_stablehlo([x @ x])
    finally:
        _XLAC._xla_set_mat_mul_precision("highest")
    assert f"precision = [{level.upper()}, {level.upper()}]" in text or (level == "default" and "HIGH" not in text)
    with pytest.raises(ValueError, match="got 'fast'"):
        _XLAC._xla_set_mat_mul_precision("fast")


@pytest.mark.parametrize("enabled", [True, False])
def test_given_away_buffers_by_their_switch(enabled):
    x = torch.ones(4).to("xla")
    _XLAC._set_buffer_donation(x, True)
    _XLAC._xla_set_enable_alias_with_buffer_donor_config(enabled)
    try:
        y = x + 1
        _XLAC._xla_sync_multi([y], sync_xla_data=False)
    finally:
        _XLAC._xla_set_enable_alias_with_buffer_donor_config(False)
    assert _XLAC._is_placecholder(x) is enabled
    assert y.tolist() == [2] * 4
