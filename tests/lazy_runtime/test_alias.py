"""`import torch_xla`."""

from __future__ import annotations

import sys


def test_modules_are_the_very_same(fresh_process):
    fresh_process("""
        import sys
        import lazy_runtime
        lazy_runtime.install_torch_xla_alias()
        lazy_runtime.install_torch_xla_alias()
        import torch
        assert "jax" not in sys.modules
        import torch_xla
        import torch_xla.core.xla_model as xm
        import torch_xla.debug.metrics as met
        import torch_xla.debug.profiler as xp
        import torch_xla.distributed.parallel_loader as pl
        import torch_xla.runtime as xr
        import torch_xla.test.test_utils
        from torch_xla import runtime
        from torch_xla.amp import autocast, syncfree
        from torch_xla.distributed.data_parallel import ParallelLoader
        from torch_xla.experimental import eager_mode
        assert torch_xla is lazy_runtime and torch_xla.__spec__.name == lazy_runtime.__name__ == "lazy_runtime"
        assert xm is lazy_runtime.core.xla_model and xm.__name__ == "lazy_runtime.core.xla_model"
        assert met is lazy_runtime.debug.metrics and xp is lazy_runtime.debug.profiler
        assert xr is runtime is lazy_runtime.runtime and pl.ParallelLoader is ParallelLoader
        assert torch_xla.torch_xla.compile is torch_xla.compile
        assert torch_xla.device() == xm.xla_device() == torch.device("xla:0")
        xm.answer = 42
        assert lazy_runtime.core.xla_model.answer == 42
        for name, text in [
            ("torch_xla.distributed.xla_multiprocessing", "several processes or threads per device are not supported"),
            ("torch_xla.nothing.here", "lazy_runtime, which stands in for torch_xla here, has no lazy_runtime.nothing"),
        ]:
            try:
                __import__(name)
            except ModuleNotFoundError as error:
                assert text in str(error), error
            else:
                raise AssertionError(name)
        compiled = torch.compile(torch.sin, backend="openxla")  # Dynamo's stub imports torch_xla
        x = torch.ones(3, device="xla")
        assert torch.equal(compiled(x), x.sin())
        assert "Metric: CompileTime" in torch_xla._XLAC._xla_metrics_report()
    """)


def test_a_real_torch_xla_is_left_alone_unless_told_otherwise(fresh_process, tmp_path):
    (tmp_path / "torch_xla").mkdir()
    (tmp_path / "torch_xla" / "__init__.py").write_text("real = True\n")
    path = repr(str(tmp_path))
    fresh_process(f"""
        import sys
        sys.path.insert(0, {path})
        import lazy_runtime
        try:
            lazy_runtime.install_torch_xla_alias()
        except RuntimeError as error:
            assert "torch_xla is installed at" in str(error) and "replace=True" in str(error)
        else:
            raise AssertionError
        lazy_runtime.install_torch_xla_alias(replace=True)
        import torch
        import torch_xla
        assert torch_xla is lazy_runtime
        assert torch.ones(2, device=torch_xla.device()).tolist() == [1, 1]
    """)
    fresh_process(f"""
        import sys
        sys.path.insert(0, {path})
        import torch_xla
        import lazy_runtime
        try:
            lazy_runtime.install_torch_xla_alias(replace=True)
        except RuntimeError as error:
            assert "has been imported from" in str(error)
        assert torch_xla.real
    """)


def test_nothing_is_aliased_unasked():
    assert "torch_xla" not in sys.modules
