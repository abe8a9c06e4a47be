import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from openxla_backend.packaging import archive
from openxla_backend.packaging.archive import Contents, PackageError
from openxla_backend.packaging.signature import UntrustedPackageError

KEY = b"of the tests"
WEIGHTS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(3, dtype=torch.bfloat16), "c": torch.tensor(True)}
CONTENTS = Contents({"results": {"x": [1, 2]}, "names": ["z", "a"]}, b"machine code", WEIGHTS)


def assert_is(found):
    assert {"results": {"x": [1, 2]}, "names": ["z", "a"]}.items() <= found.description.items()
    assert list(found.description["results"]) == ["x"]
    assert found.program == b"machine code"
    assert found.weights.keys() == WEIGHTS.keys()
    for name, tensor in WEIGHTS.items():
        assert found.weights[name].dtype == tensor.dtype
        assert torch.equal(found.weights[name], tensor)


def test_what_was_written_is_read(tmp_path):
    path = tmp_path / "p"
    digest = archive.write(path, CONTENTS, KEY)
    assert_is(archive.read(path, None, KEY))
    assert_is(archive.read(path, digest, None))
    assert_is(archive.parse(archive.dump(CONTENTS)))
    assert [each.name for each in tmp_path.iterdir()] == ["p"]


def test_it_has_the_permissions_of_other_files(tmp_path):
    (tmp_path / "other").touch()
    archive.write(tmp_path / "p", CONTENTS, KEY)
    assert (tmp_path / "p").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_tools_for_weights_read_it(tmp_path):
    archive.write(tmp_path / "p", CONTENTS, KEY)
    with safe_open(tmp_path / "p", "pt") as file:
        assert torch.equal(file.get_tensor("a"), WEIGHTS["a"])


def test_what_cannot_be_written_leaves_what_was_there(tmp_path):
    path = tmp_path / "p"
    archive.write(path, CONTENTS, KEY)
    with pytest.raises(Exception, match="contiguous"):
        archive.write(path, CONTENTS._replace(weights={"a": WEIGHTS["a"].t()}), KEY)
    assert_is(archive.read(path, None, KEY))
    assert [each.name for each in tmp_path.iterdir()] == ["p"]


@pytest.mark.parametrize("kept", [0, 5, 100, -1])
def test_a_torn_file_is_refused(kept, tmp_path):
    path = tmp_path / "p"
    archive.write(path, CONTENTS, KEY)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(PackageError, match=r"p is no package, or is torn"):
        archive.read(path, None, KEY)


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "p"
    with pytest.raises(FileNotFoundError, match=r"there is no package .*p"):
        archive.read(path, None, KEY)
    save_file(WEIGHTS, path)
    with pytest.raises(PackageError, match="it has no description"):
        archive.read(path, None, KEY)


def test_exchanged_code_is_refused(tmp_path):
    path = tmp_path / "p"
    archive.write(path, CONTENTS, KEY)
    path.write_bytes(path.read_bytes().replace(b"machine code", b"another code"))
    with pytest.raises(PackageError, match="is damaged: its code is not what its description says"):
        archive.read(path, None, KEY)
    archive.write(path, CONTENTS, b"another key")
    with pytest.raises(UntrustedPackageError):
        archive.read(path, None, KEY)


def test_another_format_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "p"
    monkeypatch.setattr(archive, "FORMAT", 2)
    archive.write(path, CONTENTS, KEY)
    monkeypatch.undo()
    with pytest.raises(PackageError, match="has format 2, this version reads 1: package it again"):
        archive.read(path, None, KEY)
