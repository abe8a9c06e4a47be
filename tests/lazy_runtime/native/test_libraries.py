"""The C++ part is built at the first use of xla where no installation has built it."""

from __future__ import annotations

import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import lazy_runtime
import openxla_backend
from lazy_runtime import native
from lazy_runtime.native import build, libraries


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The package as `pip install` leaves it where there was no torch yet, with an empty home and a compiler that
    copies what has been built here; gives the environment and the file that says what the compiler has compiled.
    """
    for package in (lazy_runtime, openxla_backend):
        source = Path(package.__file__).parent
        shutil.copytree(source, tmp_path / "site" / source.name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (tmp_path / "built").mkdir()
    (tmp_path / "home").mkdir()
    for stem in build.stems():
        (tmp_path / "built" / stem).symlink_to(libraries.find(stem, libraries.torch_version()))
    compiler, log = tmp_path / "compiler", tmp_path / "log"
    compiler.write_text(
        f"""#!/bin/sh
        case "$*" in *c++-header*) exit 1; esac  # this compiler does not precompile headers
        while [ $# -gt 0 ]; do [ "$1" = -o ] && out=$2; shift; done
        stem=$(basename "$out" | cut -d- -f1)
        echo $stem >> {log}
        sleep 0.2
        cp {tmp_path}/built/$stem "$out"
        """
    )
    compiler.chmod(0o755)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    log.touch()
    there = {"PYTHONPATH": str(tmp_path / "site"), "PYTHONSAFEPATH": "1"}
    return {**there, "HOME": str(tmp_path / "home"), "CXX": str(compiler)}, log


MOVES = """
    import contextlib, io
    with contextlib.redirect_stderr(io.StringIO()) as said:
        import torch
        assert torch.tensor([1.5]).to(torch.float64).to("cpu").tolist() == [1.5]
        assert "jax" not in __import__("sys").modules
        x = torch.ones(2, requires_grad=True)
        (x * 3).sum().backward()
        assert said.getvalue() == ""
        y = torch.nn.Linear(2, 2, bias=False).to("xla")
        y(torch.ones(1, 2, device="xla")).sum().backward()
        assert y.weight.grad.cpu().tolist() == [[1, 1], [1, 1]]
        import lazy_runtime
    assert "/site/" in lazy_runtime.__file__
    print(said.getvalue())
"""


def test_at_the_first_use(fresh_process, installed):
    """Once, though two processes begin at once, and never again."""
    environment, log = installed
    with ThreadPoolExecutor() as pool:
        said = [each.result() for each in [pool.submit(fresh_process, MOVES, **environment) for _ in range(2)]]
    assert sorted(log.read_text().split()) == sorted(build.stems())
    builder = max(said, key=len)
    assert "lazy_runtime: building the C++ part for torch" in builder
    assert f"({len(build.stems())} of {len(build.stems())})" in builder
    assert not min(said, key=len).replace("lazy_runtime: waiting for another process, which builds", "").count("built")
    cache = Path(environment["HOME"], ".cache", "lazy_runtime", "native")
    assert len(list(cache.glob("*/*.so"))) == len(build.stems())

    environment["CXX"] = "no compiler"
    assert fresh_process(MOVES, **environment).strip() == ""
    (made,) = cache.iterdir()
    made.chmod(0o777)  # what others could have written is not loaded
    assert "can be written by other users" in fresh_process(FAILS, **environment)


FAILS = """
    import warnings
    import torch
    assert torch.nn.Linear(2, 2).double()(torch.ones(2).to("cpu", torch.float64)).dtype == torch.float64
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert torch.xla.is_available() is False
    print("warned", caught[-1].message)
    uses = [
        lambda: torch.ones(2, device="xla"),
        lambda: torch.ones(2).to("xla"),
        lambda: torch.nn.Linear(2, 2).to("xla"),
        lambda: torch.compile(lambda x: x + 1, backend="openxla")(torch.ones(2)),
    ]
    for use in uses:
        try:
            use()
        except Exception as error:
            print(type(error).__name__, error)
"""


def test_without_a_compiler_every_use_says_what_to_do(fresh_process, installed):
    environment, _ = installed
    said = fresh_process(FAILS, **{**environment, "CXX": "no compiler"})
    assert (
        said.count(f"the C++ part of lazy_runtime is not built for torch {libraries.torch_version()}, and could") == 5
    )
    assert said.count("no C++ compiler was found: install g++ or clang++, or set CXX") == 5
    assert "NativeError" in said


def test_without_pythons_headers_a_warning_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "python_headers", lambda: tmp_path)
    libraries._say_what_is_slow.cache_clear()
    with pytest.warns(RuntimeWarning, match=r"Python\.h was not found: install Python's headers"):
        libraries.ensure()
    libraries.ensure()  # once
    assert not set(build.PYTHON) & set(build.stems())


def test_another_python_gets_its_own():
    assert build.library_name("recording", "2.13.0+cpu") == f"recording-2.13.0_cpu-{sys.implementation.cache_tag}.so"
    assert build.library_name("guard", "2.13.0+cpu") == "guard-2.13.0_cpu.so"


def test_a_file_that_does_not_load(monkeypatch, tmp_path):
    monkeypatch.setattr(libraries, "HERE", tmp_path)
    (tmp_path / build.library_name("guard", "1.2")).write_text("not a library")
    with pytest.raises(native.NativeError, match=r"guard-1\.2\.so does not load .*run `python -m lazy_runtime"):
        libraries.load("guard", "1.2")
