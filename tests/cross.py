"""Compiles the native part for other processors: `python -m tests.cross` (minutes; `make cross`).

zig brings clang and the C library's headers for each processor, and torch's headers are the same for all of them.
Nothing is linked, since torch's libraries for that processor are not here.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lazy_runtime.native import build

TARGETS = {"aarch64": "aarch64-linux-gnu.2.28"}


def compile_for(target: str, stem: str, folder: Path) -> str:
    """Compiles one library's source.

    Returns: what went wrong, with the compiler's messages; nothing where it compiled.
    """
    includes = [build.package_dir(name) / "include" for name in ("torch", "jaxlib")]
    includes += [build.python_headers()]
    rest = ["-c", str(build.HERE / f"{stem}.cpp"), "-o", str(folder / f"{stem}.o")]
    result = subprocess.run(build.compile_command(includes, rest), capture_output=True, text=True, check=False)
    return "" if result.returncode == 0 else f"{stem}.cpp did not compile for {target}:\n{result.stderr}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--targets", default=",".join(TARGETS), help="which, separated by commas (default: all)")
    failed = False
    for name in parser.parse_args().targets.split(","):
        os.environ["CXX"] = f"{sys.executable} -m ziglang c++ -target {TARGETS[name]} -w"
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
            for said in pool.map(lambda stem: compile_for(name, stem, Path(folder)), build.stems()):  # noqa: B023
                failed = failed or bool(said)
                print(said, end="")
        print(f"{name}: {len(build.stems())} libraries {'did not all compile' if failed else 'compiled'}")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
