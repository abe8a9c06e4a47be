"""The C++ part is built for one torch; without it there is one sentence that says what to do."""

from __future__ import annotations

import pytest

from lazy_runtime import native
from lazy_runtime.native import build


def test_another_version():
    with pytest.raises(native.NativeError, match=r"was built for another version \(guard-.*this is version 0.0.1: run"):
        native._library("guard", "0.0.1")


def test_not_built(monkeypatch, tmp_path):
    monkeypatch.setattr(native, "HERE", tmp_path)
    with pytest.raises(native.NativeError, match=r"is not built and this is version 1\.2: run `python -m lazy_runtime"):
        native._library("guard", "1.2")


def test_a_file_that_does_not_load(monkeypatch, tmp_path):
    monkeypatch.setattr(native, "HERE", tmp_path)
    (tmp_path / build.library_name("guard", "1.2")).write_text("not a library")
    with pytest.raises(native.NativeError, match=r"guard-1\.2\.so does not load .*run `python -m lazy_runtime"):
        native._library("guard", "1.2")


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
