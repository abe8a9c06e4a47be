import subprocess
import sys

import pytest
import torch

from lazy_runtime.torch_xla.debug import model_comparator as mc


@pytest.fixture(autouse=True)
def _configured(monkeypatch):
    monkeypatch.delenv("MODELCMP_SAVEDIR", raising=False)
    yield
    mc.configure(None)


def run(directory, factor, monkeypatch=None):
    mc.configure(str(directory))
    for step in range(2):
        x = mc.save("x", torch.ones(2, 3, device="xla") * step, step)
        mc.save("x", x * factor, step)
    return mc.save(None, torch.ones(1))


def test_equal_and_different_runs(tmp_path):
    assert run(tmp_path / "a", 2.0).item() == 1
    run(tmp_path / "b", 2.0)
    assert mc.compare(str(tmp_path / "a"), str(tmp_path / "b")) == ""
    run(tmp_path / "c", 3.0)
    report = mc.compare(str(tmp_path / "a"), str(tmp_path / "c"))
    assert report.count("x.1 of ") == 1  # at step 0 all is 0
    assert "[0, 2]: 2.0 vs. 3.0, error 1.0" in report
    (tmp_path / "c" / "step-1" / "x.1").unlink()
    assert "is not in" in mc.compare(str(tmp_path / "a"), str(tmp_path / "c"))


def test_names_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setenv("MODELCMP_SAVEDIR", str(tmp_path))
    mc.save(None, torch.ones(1))
    assert [each.name.split(".l")[0] for each in tmp_path.iterdir()] == ["test_model_comparator.py"]


def test_nothing_is_saved_without_a_directory():
    x = torch.ones(1)
    assert mc.save("x", x) is x


def test_tensors():
    x = torch.tensor([1.0, torch.inf, torch.nan, 4.0])
    assert mc.compare_tensors(x, x.clone()) == ""
    y = torch.tensor([1.0 + 1e-7, torch.inf, 0.0, 5.0])
    assert [line.split(":")[0] for line in mc.compare_tensors(x, y).splitlines()] == ["[2]", "[3]"]
    assert mc.compare_tensors(x, y, max_diffs=1).splitlines()[1] == "... and 1 more"
    assert "sizes are [4] and [2]" in mc.compare_tensors(x, x[:2])


def test_two_files(tmp_path):
    paths = []
    for name, value in (("a", 1.0), ("b", 1.0), ("c", 1.5)):
        mc.configure(str(tmp_path / name))
        mc.save("x", torch.full((2,), value, device="xla"))
        paths.append(str(tmp_path / name / "x.0"))
    assert mc.tensor_file_compare(paths[0], paths[1]) == ""
    title, *rows = mc.tensor_file_compare(paths[0], paths[2]).splitlines()
    assert title == f"x.0 of {tmp_path / 'a'} and {tmp_path / 'c'}:"
    assert rows == [f"  [{place}]: 1.0 vs. 1.5, error 0.5" for place in range(2)]
    assert mc.tensor_file_compare(paths[0], paths[2], max_diffs=1).splitlines()[2] == "  ... and 1 more"
    assert mc.tensor_file_compare(paths[0], paths[2], rtol=0.5) == ""


def test_as_a_program(tmp_path):
    for name, factor in (("a", 2.0), ("b", 3.0)):
        run(tmp_path / name, factor)
    program = [sys.executable, "-m", "lazy_runtime.torch_xla.debug.model_comparator"]
    same = subprocess.run([*program, tmp_path / "a", tmp_path / "a"], capture_output=True, text=True)
    other = subprocess.run([*program, tmp_path / "a", tmp_path / "b"], capture_output=True, text=True)
    assert (same.returncode, same.stderr) == (0, "")
    assert other.returncode == 1
    assert "error 1.0" in other.stderr
