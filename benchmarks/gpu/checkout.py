"""A checkout that is not installed: torch finds its backends through entry points, and its C++ part is built."""

from __future__ import annotations

import configparser
import importlib.metadata
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DISTRIBUTION = "openxla-torch"


def is_installed() -> bool:
    """Whether an installation tells torch of this package."""
    try:
        importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def write_metadata(folder: Path) -> Path:
    """Writes what an installation would: the entry points of `setup.cfg`, beside a name and a version.

    Returns:
        The folder that has to be on Python's path.
    """
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    lines = [f"[{group}]\n{entries.strip()}\n" for group, entries in parser["options.entry_points"].items()]
    target = folder / f"{DISTRIBUTION.replace('-', '_')}-0.dist-info"
    target.mkdir(parents=True, exist_ok=True)
    (target / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: 0\n")
    (target / "entry_points.txt").write_text("\n".join(lines))
    return folder


def put_on_path(folder: Path) -> None:
    """Has this process, and all that it starts, find a folder and this checkout."""
    for path in (str(ROOT), str(folder)):
        if path not in sys.path:
            sys.path.insert(0, path)
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)


def build() -> dict[str, float]:
    """Builds the libraries of the C++ part that are missing for this torch; returns the seconds."""
    from lazy_runtime.native import libraries

    start = time.perf_counter()
    libraries.ensure()
    return {"seconds": time.perf_counter() - start}
