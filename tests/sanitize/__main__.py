"""Builds and tests the native part with other compilers and under sanitizers: `python -m tests.sanitize` (an hour).

Each variant has a copy of the packages in a folder of its own, so the libraries in use stay as they are.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from .variants import VARIANTS, Variant

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("lazy_runtime", "openxla_backend", "tests", "pyproject.toml")

#: Builds the libraries in a folder. The package itself would import torch.
_BUILD = "import sys; sys.path.insert(0, sys.argv[1]); import build; build.build()"


def prepare(variant: Variant, folder: Path) -> None:
    """Copies the packages and builds their libraries.

    Raises:
        subprocess.CalledProcessError: the build failed; the compiler's messages are printed.
    """
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy(source, folder / name)
    environment = {**os.environ, "CXX": variant.compiler(), "CXXFLAGS": variant.flags}
    command = [sys.executable, "-I", "-c", _BUILD, str(folder / "lazy_runtime/native")]
    subprocess.run(command, env=environment, check=True)


def test(variant: Variant, folder: Path) -> bool:
    """Runs the variant's tests in its folder; what they print is printed. Returns whether all passed."""
    environment = {**os.environ, **variant.environment, "PYTHONPATH": str(folder)}
    # what a sanitizer writes as it ends the process would be lost with a file of pytest's
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--capture=sys", "-p", "no:cacheprovider", *variant.tests]
    if variant.runtime:
        environment["LD_PRELOAD"] = variant.preloaded()
        command = ["setarch", "-R", *command]  # a sanitizer wants its addresses where nothing else is put at random
    return subprocess.run(command, cwd=folder, env=environment, check=False).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variants", default=",".join(VARIANTS), help="which, separated by commas (default: all)")
    failed = []
    for name in parser.parse_args().variants.split(","):
        print(f"== {name}: {VARIANTS[name].flags}", flush=True)
        with tempfile.TemporaryDirectory(prefix=f"native-{name}-") as folder:
            try:
                prepare(VARIANTS[name], Path(folder))
            except (RuntimeError, subprocess.CalledProcessError) as error:
                print(f"not built: {error}", flush=True)
                failed.append(name)
                continue
            if not test(VARIANTS[name], Path(folder)):
                failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else "all variants passed")
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
