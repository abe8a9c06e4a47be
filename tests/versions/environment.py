"""One combination of versions: an environment with the package installed, and what the tests say there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

from .matrix import SMOKE, Combination

ROOT = Path(__file__).parents[2]
_PACKAGES = ("lazy_runtime/", "openxla_backend/")
#: Of the development environment's pins, those that each combination chooses itself, and what these bring along.
_FREE = re.compile(r"(torch|torchvision|jax|jaxlib|numpy|scipy|ml_dtypes|triton|nvidia\S*|cuda\S*|setuptools|sympy)\b")


class MissingError(Exception):
    """The machine has no interpreter of the wanted version."""


def interpreter(version: str) -> str:
    """The path of a Python, by its command (`python3.12`) or among pyenv's.

    Raises:
        MissingError: there is none.
    """
    paths = [shutil.which(f"python{version}"), *sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))]
    for path in paths:
        # pyenv has a command for each of its versions, which fails where another one is chosen
        if path is not None and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            return str(path)
    raise MissingError(f"there is no python{version}")


def outcome(combination: Combination, folder: Path) -> dict[str, Any]:
    """Installs the package beside these versions, and runs the tests.

    Args:
        combination: the versions.
        folder: of the environment, which is made there, or used again.

    Returns:
        The versions as they call themselves, how many tests passed, failed and were skipped, and which failed.

    Raises:
        MissingError: the machine has no such Python.
        subprocess.CalledProcessError: something could not be installed, or no test ran.
    """
    python = folder / "venv" / "bin" / "python"
    if not python.exists():
        _run([interpreter(combination.python), "-m", "venv", str(folder / "venv")])
    pins = [line for line in (ROOT / "requirements/constraints.txt").read_text().splitlines() if not _FREE.match(line)]
    (folder / "constraints.txt").write_text("\n".join(pins))
    pip = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(folder / "constraints.txt")]
    wanted = [f"torch=={combination.torch}", f"jax=={combination.jax}", f"jaxlib=={combination.jax}"]
    _run([*pip, *wanted, "pytest", "hypothesis", "expecttest"])
    source = _copy(folder / "source", whole=True)
    _run([*pip, "--no-deps", "--force-reinstall", str(source)])
    tests = _copy(folder / "tests", whole=False)
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    command = [str(python), "-m", "pytest", "-q", f"--junit-xml={report}", *SMOKE]
    done = subprocess.run(command, cwd=tests, check=False)
    if not report.exists():
        raise subprocess.CalledProcessError(done.returncode, command)
    return {**_versions(python), **_counts(report)}


def _copy(folder: Path, whole: bool) -> Path:
    """The files that git knows; without the packages, tests run against what is installed."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in _run(["git", "ls-files"], cwd=ROOT).splitlines():
        if whole or not name.startswith(_PACKAGES):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def _versions(python: Path) -> dict[str, str]:
    code = "import platform, torch, jax; print(platform.python_version(), torch.__version__, jax.__version__)"
    names = ("python", "torch", "jax")
    return dict(zip(names, _run([str(python), "-c", code], cwd=Path("/")).split(), strict=True))


def _counts(report: Path) -> dict[str, Any]:
    cases = list(ElementTree.parse(report).iter("testcase"))
    bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = sum(case.find("skipped") is not None for case in cases)
    return {
        "passed": len(cases) - len(bad) - skipped,
        "failed": len(bad),
        "skipped": skipped,
        "failures": sorted(f"{case.get('classname')}.{case.get('name')}" for case in bad),
    }


def _run(command: list[str], cwd: Path = ROOT) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stdout + done.stderr)
        done.check_returncode()
    return done.stdout
