"""The build of the C++ part."""

from __future__ import annotations

import subprocess

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


def test_precompiled_headers(monkeypatch, tmp_path):
    """A source begins with them, and a compiler that cannot make them leaves nothing behind."""
    monkeypatch.setattr(build, "HEADERS", ("cstdint", "vector"))
    options = build.precompile(tmp_path, [])
    assert (tmp_path / "torch_headers.h.gch").exists()
    source, target = tmp_path / "uses.cpp", tmp_path / "uses.so"
    source.write_text("std::vector<int64_t> numbers() { return {1}; }\n")
    build.compile_library(source, target, [], [], [], options)
    assert target.exists()
    with pytest.raises(build.BuildError):
        build.compile_library(source, target, [], [], [])

    monkeypatch.setattr(build, "HEADERS", ("no_such_header",))
    assert build.precompile(tmp_path, []) == []
    assert not (tmp_path / "torch_headers.h.gch").exists()


def test_headers_are_precompiled_where_most_libraries_wait_for_them(monkeypatch, tmp_path):
    commands = []

    def compiled(command, **given):
        commands.append(command)
        target = command[command.index("-o") + 1]
        (tmp_path / target).write_text("")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.delenv("LAZY_RUNTIME_BUILDS", raising=False)
    monkeypatch.setattr(build.subprocess, "run", compiled)
    for processors, uses in ((1, len(build.stems())), (64, 0)):
        commands.clear()
        monkeypatch.setattr(build.os, "cpu_count", lambda processors=processors: processors)
        build.build(tmp_path)
        assert sum("-shared" in command for command in commands) == len(build.stems())
        assert sum("-include" in command for command in commands) == uses


def test_libraries_are_kept_where_a_folder_is_named(monkeypatch, tmp_path):
    """The same sources, flags and packages are compiled once; without the folder they always are."""
    compiled = []

    def compile_library(source, target, *rest):
        compiled.append(source.stem)
        target.write_text(f"{source.stem} {len(compiled)}")

    monkeypatch.setattr(build, "compile_library", compile_library)
    monkeypatch.delenv("LAZY_RUNTIME_BUILDS", raising=False)
    build.build(tmp_path / "first", ("guard", "sparse"))
    build.build(tmp_path / "first", ("guard",))
    assert sorted(compiled) == ["guard", "guard", "sparse"]

    monkeypatch.setenv("LAZY_RUNTIME_BUILDS", str(tmp_path / "kept"))
    compiled.clear()
    seen = []
    (first,) = build.build(tmp_path / "second", ("guard",))
    (second,) = build.build(tmp_path / "third", ("guard",), lambda *given: seen.append(given))
    assert compiled == ["guard"]
    assert second.read_text() == first.read_text() == "guard 1"
    assert seen == [("guard", 1)]
    monkeypatch.setenv("CXXFLAGS", "-DOTHER")
    build.build(tmp_path / "fourth", ("guard",))
    assert compiled == ["guard", "guard"]
