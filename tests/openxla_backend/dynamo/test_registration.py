"""Who answers to `backend="openxla"`, and when."""

import warnings

import pytest
import torch

from openxla_backend import autoload, backend
from tests.openxla_backend.helpers import assert_same


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


def test_other_backends_get_neither_jax_nor_ours(fresh_process):
    fresh_process(
        """
        import sys
        import torch
        x = torch.randn(3)
        torch.testing.assert_close(torch.compile(lambda x: x.sin() + 1, backend="eager")(x), x.sin() + 1)
        assert "torch._dynamo.backends.torchxla" in sys.modules
        assert {"openxla", "torchxla_trace_once"} <= set(torch._dynamo.list_backends())
        assert not [name for name in sys.modules if name.split(".")[0] in ("jax", "jaxlib")]
        assert [name for name in sys.modules if name.startswith("openxla_backend.")] == ["openxla_backend.autoload"]
        assert "lazy_runtime.platform.xla_devices" not in sys.modules

        # a function that eager compiles works on xla tensors: Dynamo hears of them when there are some
        y = x.to("xla")
        assert "openxla_backend.dynamo.registration" in sys.modules
        torch.testing.assert_close(torch.compile(lambda y: y.cos(), backend="eager")(y).cpu(), x.cos())
        torch.testing.assert_close(torch.compile(lambda y: y.tan(), backend="openxla")(y).cpu(), x.tan())
        """
    )


def test_xla_in_use_before_torch_looks_for_backends(fresh_process):
    fresh_process(
        """
        import sys
        import torch
        torch.ones(2, device="xla")
        assert "openxla_backend.dynamo.registration" not in sys.modules
        import torch._dynamo.backends.torchxla
        assert "openxla_backend.dynamo.registration" in sys.modules
        """
    )


def test_a_failure_of_ours_breaks_no_other_backend(fresh_process):
    out = fresh_process(
        """
        import contextlib, io, sys
        import torch
        sys.modules["openxla_backend.dynamo.step_capture"] = None  # as if one import of ours were gone
        f, x = lambda x: x.sin() + 1, torch.randn(3)
        with contextlib.redirect_stderr(io.StringIO()) as said:
            torch.testing.assert_close(torch.compile(f, backend="eager")(x), f(x))
        assert said.getvalue() == ""
        with contextlib.redirect_stderr(io.StringIO()) as said:
            y = torch.ones(2, device="xla")
            torch.testing.assert_close(torch.compile(lambda y: y + 1, backend="eager")(y).cpu(), torch.full((2,), 2.0))
        print(said.getvalue())
        try:
            torch.compile(f, backend="openxla")(x)
        except ImportError as error:
            print("raised", error)
        """
    )
    assert out.count("backend='openxla' could not be imported: ModuleNotFoundError") == 1
    assert "raised" in out


def test_a_function_is_the_backend_that_its_name_is():
    from torch._dynamo.backends import registry

    assert registry._is_registered_backend(backend.openxla)


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
    autoload.claim_backend_name()
    assert registry.lookup_backend("openxla") is backend.openxla
    autoload.claim_backend_name()
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
