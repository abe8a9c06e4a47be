"""Files that are replaced as a whole."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from lazy_runtime.common import whole_files


def write(path: Path, text: str) -> None:
    with whole_files.replacing(path) as other, open(other, "w") as file:
        file.write(text)


def mode(path: Path) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def test_a_file_is_what_it_was_until_it_is_the_other(tmp_path):
    path = tmp_path / "file"
    for text in ("first", "second"):
        with whole_files.replacing(path) as other:
            assert os.path.basename(other) == "file"
            Path(other).write_text(text)
            assert path.exists() == (text == "second")
        assert path.read_text() == text
    with pytest.raises(TypeError):
        write(path, 3)  # type: ignore[arg-type]
    assert path.read_text() == "second"
    assert os.listdir(tmp_path) == ["file"]


def test_what_a_killed_process_has_left_is_removed(tmp_path):
    path = tmp_path / "file"
    (tmp_path / ".file.unfinished-1").mkdir()
    (tmp_path / ".file.unfinished-1" / "file").write_text("half of i")
    with whole_files.replacing(path) as other:
        Path(other).write_text("slow")
        write(path, "fast")  # as another process might
    assert path.read_text() == "slow"
    assert os.listdir(tmp_path) == ["file"]


def test_permissions_are_those_that_open_gives(tmp_path):
    path = tmp_path / "file"
    before = os.umask(0o027)
    try:
        write(path, "new")
        assert mode(path) == 0o640
        path.chmod(0o604)
        write(path, "old")
        assert mode(path) == 0o604
    finally:
        os.umask(before)


def test_links_are_followed(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "file")
    for text in ("new", "old"):
        write(tmp_path / "link", text)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "folder" / "file").read_text() == text


def test_what_cannot_be_replaced_is_written_to(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "missing" / "file"):
        with whole_files.replacing(path) as same:
            assert same == str(path)
