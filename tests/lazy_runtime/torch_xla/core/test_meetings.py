from __future__ import annotations

import pytest
import torch

from lazy_runtime.torch_xla import runtime as xr
from lazy_runtime.torch_xla.core import xla_model as xm


def met() -> list[list[bytes]]:
    return [xm.xla_rendezvous(bytes([65 + xr.global_ordinal()])), xm.xla_rendezvous(b"", [0, 1], "here")]


def test_rendezvous(ranks):
    assert ranks(2)(met) == [[[b"A", b"B"], [b"", b""]]] * 2


def test_wrong_rendezvous():
    with pytest.raises(TypeError, match="expected bytes, got str"):
        xm.xla_rendezvous("text")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="all 1 ranks"):
        xm.xla_rendezvous(b"", [0, 1])


def test_channels_say_what_to_call():
    for call in (xm.send, xm.recv):
        with pytest.raises(NotImplementedError, match=r"torch\.distributed\.(send|recv)\(tensor"):
            call(torch.ones(1, device="xla"), 1)


def test_views_of_one_memory():
    x, y = torch.ones(4, device="xla"), torch.ones(4, device="xla")
    xm.check_view_sharing({"x": [x, x], "y": y, "cpu": torch.ones(4)})
    with pytest.raises(RuntimeError, match=r"float32\[2\] on xla:0 and a tensor float32\[4\] on xla:0 share memory"):
        xm.check_view_sharing([x, (y, x[:2])])
    z = torch.ones(4)
    with pytest.raises(RuntimeError, match="on cpu share memory"):
        xm.check_view_sharing([z, z.view(2, 2)])


def test_devices_behind_the_devices():
    assert xm.xla_replication_devices() == xm.xla_real_devices()
    with pytest.raises(RuntimeError, match="expected all"):
        xm.xla_replication_devices(["xla:0"] * 9)
    assert xm.DeviceContext("xla:0").device == "xla:0"
    assert set(xm.MemoryInfo.__annotations__) == set(xm.get_memory_info())
