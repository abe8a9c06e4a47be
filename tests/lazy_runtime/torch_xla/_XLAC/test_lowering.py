import pytest
import torch

from lazy_runtime.torch_xla import _XLAC
from lazy_runtime.torch_xla.core import xla_builder as xb


def test_a_program_and_its_parameters():
    x, y = torch.tensor([1.0, 2.0]).to("xla"), torch.tensor([3.0, 4.0]).to("xla")
    context = _XLAC.lowering.LoweringContext("Named")
    with pytest.raises(RuntimeError, match="build"):
        context.hlo_text()
    context.build([x * y - x])
    assert "Named" in context.hlo_text()
    assert context.hlo_text().count("f32[2]{0} parameter") == 2
    values = context.parameter_id_tensor_mapping()
    assert values[context.tensor_parameter_id(x)].tolist() == [1.0, 2.0]
    assert values[context.tensor_parameter_id(y)].tolist() == [3.0, 4.0]
    assert context.tensor_parameter_id(torch.ones(2, device="xla")) == -1
    on_device = context.device_parameter_id_tensor_mapping()
    assert {each.device.type for each in on_device.values()} == {"xla"}
    made = xb.computation_from_module_proto("again", context.hlo())
    given = [on_device[number] for number in sorted(on_device)]
    assert xb.xla_computation_as_func(made)(given)[0].tolist() == [2.0, 6.0]
    context.set_name_string("Other")
    assert context.get_name_string() == "Other"
    assert "Other" in context.hlo_text()


def test_what_jax_does_in_another_way():
    context = _XLAC.lowering.LoweringContext()
    with pytest.raises(NotImplementedError, match="mkwhile"):
        context.buildforiloop([])
    with pytest.raises(NotImplementedError, match="hlo_text"):
        context.hlo_json()
