import pytest
import torch

import lazy_runtime
from lazy_runtime.torch_xla import _XLAC
from lazy_runtime.torch_xla.core import xla_builder as xb
from lazy_runtime.torch_xla.core.xla_builder.placeholders import is_placeholder


def test_a_program_of_placeholders():
    x = xb.create_placeholder_tensor((2, 3), torch.bfloat16)
    assert x.device == lazy_runtime.device()
    assert (x.shape, x.dtype) == ((2, 3), torch.bfloat16)
    assert is_placeholder(x)
    y = x @ x.T
    assert not is_placeholder(y)
    assert "bf16[2,3]" in _XLAC._get_xla_tensors_hlo([y])
    assert _XLAC._get_xla_tensors_text([y]).count("xla::device_data") == 1


def test_has_no_value():
    with pytest.raises(RuntimeError, match="has no value"):
        xb.create_placeholder_tensor((1,), torch.float32).cpu()
    with pytest.raises(TypeError, match="no element type"):
        xb.create_placeholder_tensor((1,), torch.quint8)
