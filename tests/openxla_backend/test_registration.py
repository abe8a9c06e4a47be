"""Who answers to `backend="openxla"`, and when."""

import warnings

import pytest
import torch
from helpers import assert_same

from lazy_runtime import _autoload
from openxla_backend import backend, registration


def test_a_bare_import_of_torch_is_enough(fresh_process):
    fresh_process(
        """
        import sys
        import torch
        assert "jax" not in sys.modules
        assert "torch._dynamo" not in sys.modules
        f = torch.compile(lambda x: x.sin() + 1, backend="openxla")
        x = torch.randn(3)
        torch.testing.assert_close(f(x), x.sin() + 1)
        assert "openxla_backend.backend" in sys.modules
        assert "openxla" in torch._dynamo.list_backends()
        assert {"torchxla_trace_once", "aot_torchxla_trace_once"} <= set(torch._dynamo.list_backends())
        assert not [finder for finder in sys.meta_path if type(finder).__name__ == "_AfterStub"]
        """
    )


def test_looking_for_the_stub_does_not_lose_the_name(fresh_process):
    fresh_process(
        """
        import importlib.util
        import torch
        import torch._dynamo.backends
        importlib.util.find_spec("torch._dynamo.backends.torchxla")
        import torch._dynamo.backends.torchxla
        from openxla_backend.backend import openxla
        from torch._dynamo.backends.registry import lookup_backend
        assert lookup_backend("openxla") is openxla
        """
    )


def test_stub_imported_before():
    import torch._dynamo.backends.torchxla as stub
    from torch._dynamo.backends import registry

    registry._COMPILER_FNS["openxla"] = stub.openxla
    _autoload.claim_backend_name()
    assert registry.lookup_backend("openxla") is backend.openxla
    registration.register()
    assert registry.lookup_backend("openxla") is backend.openxla


@pytest.mark.parametrize("name", ["torchxla_trace_once", "aot_torchxla_trace_once"])
def test_old_names_warn_once(name):
    backend._deprecated.cache_clear()
    x = torch.randn(3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in (1, 2):
            assert_same(torch.compile(lambda x: x * step, backend=name)(x), x * step)  # noqa: B023
    found = [str(each.message) for each in caught if each.category is DeprecationWarning and name in str(each.message)]
    assert found == [f"backend={name!r} is PyTorch/XLA 2.0's name: use backend='openxla'"]


def test_torch_xla_keeps_its_name(fresh_process, tmp_path):
    (tmp_path / "torch_xla").mkdir()
    (tmp_path / "torch_xla" / "__init__.py").write_text("raise ImportError('not to be imported')\n")
    fresh_process(
        """
        import contextlib, io, warnings
        with contextlib.redirect_stderr(io.StringIO()) as said:
            import torch
        assert said.getvalue().startswith("torch_xla is installed beside openxla-torch"), said.getvalue()
        assert said.getvalue().count("\\n") == 1
        import torch._dynamo.backends.torchxla as stub
        from torch._dynamo.backends.registry import lookup_backend
        assert lookup_backend("openxla") is stub.openxla
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.compile(lambda x: x + 1, backend="torchxla_trace_once")(torch.ones(2))
        except Exception as error:
            assert "pip uninstall torch_xla" in str(error), error
        else:
            raise AssertionError("took over from torch_xla")
        """,
        PYTHONPATH=str(tmp_path),
    )


def test_a_tensor_made_on_xla_meets_the_arguments():
    def f(x):
        return torch.arange(3, device="xla") * x + torch.zeros(3, device=x.device)

    x = torch.ones(3, device="xla")
    assert_same(torch.compile(f, backend="openxla", fullgraph=True)(x), torch.arange(3.0), "xla")
