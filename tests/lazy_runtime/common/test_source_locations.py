import functools

import torch
import typing_extensions

import lazy_runtime
from lazy_runtime import debug
from lazy_runtime.common import errors, source_locations
from lazy_runtime.compilation import compiler


def test_the_line_is_the_users():
    class Module(torch.nn.Module):
        def forward(self):
            return source_locations.here(), source_locations.stack()

    line, stack = Module()()  # through torch's own frames
    assert (line.file, line.function) == (__file__, "forward")
    assert [frame.function for frame in stack[:2]] == ["forward", "test_the_line_is_the_users"]
    assert not any(source_locations.is_ours(frame.file) for frame in stack)


def test_what_stands_between_is_skipped():
    class Lazy:
        @functools.cached_property
        def frames(self):
            return source_locations.stack()

    assert [frame.function for frame in Lazy().frames[:2]] == ["frames", "test_what_stands_between_is_skipped"]

    @typing_extensions.deprecated("torch decorates so", category=None)
    def deprecated():
        return source_locations.stack()

    assert [frame.function for frame in deprecated()[:2]] == ["deprecated", "test_what_stands_between_is_skipped"]
    compiler.clear()
    x = torch.rand(4).to("xla")
    with lazy_runtime.compile():  # whose end runs in a generator of contextlib's
        y = x.cos()
    assert debug.compilations()[-1].region.startswith(f"{source_locations.short(__file__)}:")
    assert y.shape == x.shape


def test_lines_are_written_from_the_working_directory_on(tmp_path, monkeypatch):
    file = tmp_path / "project" / "train.py"
    line = source_locations.Line(str(file), 41, "main")
    assert str(line) == "train.py:41"
    monkeypatch.chdir(tmp_path)
    assert str(line) == "project/train.py:41"


def test_a_written_line_is_read_again():
    found = source_locations.parse(errors.user_line())
    assert found is not None
    assert (found.file, found.function) == (__file__, "test_a_written_line_is_read_again")
    assert source_locations.parse('File "a.py", line 3, in <module>: x = y') == source_locations.Line(
        "a.py", 3, "<module>"
    )
    assert source_locations.parse("") is None
