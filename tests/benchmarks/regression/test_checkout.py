import subprocess

import pytest

from benchmarks.regression import checkout
from benchmarks.regression.checkout import NATIVE, CheckoutError

BUILD = "import pathlib; (pathlib.Path(__file__).parent / 'built.so').write_text('built')\n"


def _git(root, *arguments):
    who = ["-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *who, *arguments], cwd=root, check=True, capture_output=True)


def _commit(root, text, native="one"):
    (root / NATIVE).mkdir(parents=True, exist_ok=True)
    (root / NATIVE / "guard.cpp").write_text(native)
    (root / NATIVE / "build.py").write_text(BUILD)
    (root / "benchmarks").mkdir(exist_ok=True)
    (root / "benchmarks" / "code.py").write_text(text)
    (root / "package.py").write_text(text)
    _git(root, "add", "--all")
    _git(root, "commit", "--message", text)


@pytest.fixture
def repository(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    _git(root, "init")
    (root / ".gitignore").write_text("*.so\n")
    _commit(root, "first", native="another")
    _commit(root, "second")
    _commit(root, "third")
    (root / NATIVE / "guard.so").write_text("as it was built here")
    return root


def test_a_commits_packages_with_this_trees_benchmarks(repository):
    with checkout.checkout("HEAD~1", repository) as tree:
        assert (tree / "package.py").read_text() == "second"
        assert (tree / "benchmarks" / "code.py").read_text() == "third"
        assert (tree / NATIVE / "guard.so").read_text() == "as it was built here"
    assert not tree.exists()
    listed = subprocess.run(["git", "worktree", "list"], cwd=repository, capture_output=True, text=True, check=True)
    assert len(listed.stdout.splitlines()) == 1


def test_other_native_sources_are_built(repository):
    with checkout.checkout("HEAD~2", repository) as tree:
        assert [each.name for each in (tree / NATIVE).glob("*.so")] == ["built.so"]


def test_a_build_that_fails(repository):
    (repository / NATIVE / "build.py").write_text("raise SystemExit('no compiler')")
    _git(repository, "commit", "--all", "--message", "fourth")
    (repository / NATIVE / "guard.cpp").write_text("edited")
    with (
        pytest.raises(CheckoutError, match="that commit's native part was not built: no compiler"),
        checkout.checkout("HEAD", repository),
    ):
        pass


def test_a_commit_that_is_not_there(repository, tmp_path):
    with pytest.raises(CheckoutError, match=r"there is no commit 'HEAD~9'$"):
        checkout.resolve("HEAD~9", repository)
    shallow = tmp_path / "shallow"
    _git(tmp_path, "clone", "--depth", "1", repository.as_uri(), str(shallow))
    with pytest.raises(CheckoutError, match="this clone is shallow: `git fetch --unshallow` brings the commits before"):
        checkout.resolve("HEAD~1", shallow)
