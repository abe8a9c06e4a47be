"""Jax beside torch."""

from __future__ import annotations

import importlib
import sys

import jax
import pytest

from lazy_runtime.torch_xla._internal import jax_workarounds


def test_jaxs_devices_are_xlas(forked_process):
    printed = forked_process(
        """
        import jax
        from lazy_runtime.platform import xla_devices
        from lazy_runtime.torch_xla._internal.jax_workarounds import jax_env_context, requires_jax
        @requires_jax
        def devices(first, last):
            return len(jax.devices()[first:last]), jax.devices()[0].platform
        print(xla_devices.is_started(), devices(0, last=9), xla_devices.is_started())
        """,
        CPU_NUM_DEVICES="2",
        PJRT_DEVICE="CPU",
    )
    assert printed.strip() == "False (2, 'cpu') True"


def test_modules(monkeypatch, tmp_path):
    assert jax_workarounds.maybe_get_jax() is jax
    with jax_workarounds.jax_env_context():
        assert jax_workarounds.maybe_get_torchax() is None
    (tmp_path / "torchax").mkdir()
    for name in ("__init__", "tensor", "interop", "ops"):
        (tmp_path / "torchax" / f"{name}.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert jax_workarounds.maybe_get_torchax() is None  # it has no ops.mappings
    (tmp_path / "torchax" / "ops.py").unlink()
    (tmp_path / "torchax" / "ops").mkdir()
    for name in ("__init__", "mappings"):
        (tmp_path / "torchax" / "ops" / f"{name}.py").write_text("")
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchax"]:
        monkeypatch.delitem(sys.modules, name)
    importlib.invalidate_caches()
    assert jax_workarounds.maybe_get_torchax().__name__ == "torchax"


def test_a_wrapper_is_called_what_the_function_is():
    @jax_workarounds.requires_jax
    def twice(x):
        """Doubles."""
        return 2 * x

    assert (twice(4), twice.__name__, twice.__doc__) == (8, "twice", "Doubles.")
    with pytest.raises(TypeError):
        twice()


def test_the_guard_brings_the_devices_up(forked_process):
    printed = forked_process(
        """
        from lazy_runtime.platform import xla_devices
        from lazy_runtime.torch_xla._internal.jax_workarounds import jax_import_guard
        before = xla_devices.is_started()
        jax_import_guard()
        import jax
        print(before, xla_devices.is_started(), len(jax.devices()))
        """,
        CPU_NUM_DEVICES="2",
        PJRT_DEVICE="CPU",
    )
    assert printed.strip() == "False True 2"
