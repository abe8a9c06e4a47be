"""The build of the C++ part."""

from __future__ import annotations

import pytest

from lazy_runtime.native import build


def test_no_compiler(monkeypatch, tmp_path):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build.BuildError, match=r"no C\+\+ compiler was found: install g\+\+ or clang\+\+, or set CXX"):
        build.compiler()


def test_a_compiler_that_fails_leaves_the_old_library(tmp_path):
    source, target = tmp_path / "broken.cpp", tmp_path / "broken.so"
    source.write_text("this is not C++")
    target.write_text("old")
    with pytest.raises(build.BuildError, match=r"broken.cpp did not compile"):
        build.compile_library(source, target, [], [], [])
    assert target.read_text() == "old"
