import pytest
import torch

import lazy_runtime
from lazy_runtime.torch_xla import _XLAC


def test_sessions():
    x = torch.ones(3).to("xla")
    _XLAC._dynamic_shape_detector_set_max_different_graphs(1)
    assert _XLAC._dynamic_shape_detector_get_max_different_graphs() == 1

    def record(function, session="mine"):
        _XLAC._dynamic_shape_detector_start_session(session)
        y = function(x)
        try:
            return _XLAC._dynamic_shape_detector_end_session()
        finally:
            lazy_runtime.sync()
            del y

    assert record(torch.sin)
    assert record(torch.sin)
    with pytest.raises(RuntimeError, match=r"Got: \[\] aten::cos, xla_shape=f32\[3\]\{0\}, dynamic_dims: \(\)"):
        record(torch.cos)
    assert record(torch.cos, "other")
    _XLAC._dynamic_shape_detector_set_max_different_graphs(2)
    assert record(torch.cos)
    _XLAC._dynamic_shape_detector_remove_session("mine")
    _XLAC._dynamic_shape_detector_set_max_different_graphs(1)
    assert record(torch.tan)
    assert not _XLAC._dynamic_shape_detector_end_session()
    _XLAC._dynamic_shape_detector_start_session("third")
    with pytest.raises(RuntimeError, match="'third' has not been ended"):
        _XLAC._dynamic_shape_detector_start_session("other")
    _XLAC._dynamic_shape_detector_end_session()
