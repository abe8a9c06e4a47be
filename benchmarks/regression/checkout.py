"""Another commit of this repository, ready to be measured by this one's benchmarks."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ..remote import ROOT

NATIVE = Path("lazy_runtime") / "native"


class CheckoutError(RuntimeError):
    """The commit is not there, or its native part could not be built; the message is one line."""


def resolve(revision: str, root: Path = ROOT) -> str:
    """The commit that a revision names, in short.

    Raises:
        CheckoutError: there is none.
    """
    try:
        return _git(root, "rev-parse", "--verify", "--quiet", "--short=12", "--end-of-options", revision + "^{commit}")
    except CheckoutError:
        shallow = (root / ".git" / "shallow").exists()
        hint = "; this clone is shallow: `git fetch --unshallow` brings the commits before" if shallow else ""
        raise CheckoutError(f"there is no commit {revision!r}{hint}") from None


@contextlib.contextmanager
def checkout(revision: str, root: Path = ROOT) -> Iterator[Path]:
    """A folder with the commit's packages, their native part, and the `benchmarks` of `root`, which measure both
    commits alike. It is gone afterwards.

    Raises:
        CheckoutError: there is no such commit, or its native part cannot be built.
    """
    commit = resolve(revision, root)
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        _git(root, "worktree", "add", "--detach", str(tree), commit)
        try:
            shutil.rmtree(tree / "benchmarks", ignore_errors=True)
            unwanted = shutil.ignore_patterns("results", "__pycache__")
            shutil.copytree(root / "benchmarks", tree / "benchmarks", ignore=unwanted)
            _bring_native(root / NATIVE, tree / NATIVE)
            yield tree
        finally:
            _git(root, "worktree", "remove", "--force", str(tree))


def _bring_native(built: Path, wanted: Path) -> None:
    """Gives a checkout its native part: a copy where the sources are the same, or else a build."""
    libraries = list(built.glob("*.so"))
    if libraries and _sources(built) == _sources(wanted):
        for library in libraries:
            shutil.copy2(library, wanted)
        return
    build = wanted / "build.py"
    if not build.exists():
        raise CheckoutError("that commit has no native part to build: it is older than `lazy_runtime/native`")
    result = subprocess.run([sys.executable, "-I", str(build)], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise CheckoutError(f"that commit's native part was not built: {_last_line(result)}")


def _sources(folder: Path) -> dict[str, bytes]:
    """What the libraries are built from."""
    files = [*folder.glob("*.cpp"), *folder.glob("*.h"), *folder.glob("build.py")]
    return {file.name: file.read_bytes() for file in files}


def _git(root: Path, *arguments: str) -> str:
    try:
        result = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CheckoutError(f"git does not run: {error}") from error
    if result.returncode != 0:
        raise CheckoutError(f"git {arguments[0]} failed: {_last_line(result)}")
    return result.stdout.strip()


def _last_line(result: subprocess.CompletedProcess[str]) -> str:
    lines = (result.stderr or result.stdout).strip().splitlines()
    return lines[-1].strip() if lines else f"exit code {result.returncode}"
