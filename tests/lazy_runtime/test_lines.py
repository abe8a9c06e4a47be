import torch

from lazy_runtime import errors, lines


def test_the_line_is_the_users():
    class Module(torch.nn.Module):
        def forward(self):
            return lines.here(), lines.stack()

    line, stack = Module()()  # through torch's own frames
    assert (line.file, line.function) == (__file__, "forward")
    assert [frame.function for frame in stack[:2]] == ["forward", "test_the_line_is_the_users"]
    assert not any(lines.is_ours(frame.file) for frame in stack)


def test_lines_are_written_from_the_working_directory_on(tmp_path, monkeypatch):
    file = tmp_path / "project" / "train.py"
    line = lines.Line(str(file), 41, "main")
    assert str(line) == "train.py:41"
    monkeypatch.chdir(tmp_path)
    assert str(line) == "project/train.py:41"


def test_a_written_line_is_read_again():
    found = lines.parse(errors.users_line())
    assert found is not None
    assert (found.file, found.function) == (__file__, "test_a_written_line_is_read_again")
    assert lines.parse('File "a.py", line 3, in <module>: x = y') == lines.Line("a.py", 3, "<module>")
    assert lines.parse("") is None
