import torch

from lazy_runtime.common import source_locations
from lazy_runtime.torch_xla import _XLAC


def test_parts_of_the_program():
    pusher = _XLAC.profiler.scope_pusher("part")
    assert source_locations.current_scope() == "part.1"
    pusher.close()
    assert source_locations.current_scope() == ""
    pusher = _XLAC.profiler.scope_pusher("other")
    assert "other" in source_locations.current_scope()
    del pusher
    assert source_locations.current_scope() == ""


def test_parts_of_a_profile(tmp_path):
    part = _XLAC.profiler.TraceMe("mine", number=3)
    part.set_metadata(more=4)
    _XLAC.profiler.start_server  # noqa: B018
    import jax

    with jax.profiler.trace(str(tmp_path)), part as entered:
        assert entered is part
        (torch.ones(2, device="xla") + 1).cpu()
    assert list(tmp_path.rglob("*.xplane.pb"))


def test_a_profile_from_now_on(tmp_path):
    _XLAC.profiler.trace("localhost:1", str(tmp_path), duration_ms=20, options={"host_tracer_level": 1})
    assert list(tmp_path.rglob("*.xplane.pb"))
