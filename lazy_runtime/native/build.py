"""Builds the package's C++ for the torch (and jaxlib) of this interpreter: `python -m lazy_runtime.native`.

setup.py runs this file as a script in isolated mode (`python -I`), because pip builds packages in an environment that
hides the torch they will run with. Torch itself is not imported: that would take seconds, and needs numpy.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent

#: The libraries of operators of ours (`lazy_runtime_kernels::`), which programs on the CPU call.
KERNELS = (
    "winograd",
    "winograd_gradient",
    "pointwise",
    "depthwise",
    "depthwise_gradient",
    "attention",
    "batch_norm",
    "few_rows",
    "outer_products",
)


class BuildError(RuntimeError):
    """The native part could not be built; the message says what to do."""


def library_name(stem: str, version: str) -> str:
    """File name of a library built for one version of the package that it links against."""
    return f"{stem}-{version.replace('+', '_')}.so"


def package_dir(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise BuildError(f"{name} is not installed for {sys.executable}: install it, then run this again")
    return Path(next(iter(spec.submodule_search_locations)))


def compiler() -> str:
    found = os.environ.get("CXX") or next((c for c in ("g++", "clang++", "c++") if shutil.which(c)), None)
    if found is None or not shutil.which(found.split()[0]):
        raise BuildError("no C++ compiler was found: install g++ or clang++, or set CXX, then run this again")
    return found


def compile_library(source: Path, target: Path, includes: list[Path], libraries: list[Path], names: list[str]) -> None:
    """Compiles one shared library, replacing `target` only on success."""
    temporary = target.with_suffix(f".{os.getpid()}.tmp")
    command = [
        *compiler().split(),
        "-O2",
        "-fPIC",
        "-shared",
        "-std=c++20",
        *(f"-I{path}" for path in includes),
        str(source),
        "-o",
        str(temporary),
        *(f"-L{path}" for path in libraries),
        *(f"-l{name}" for name in names),
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise BuildError(f"{source.name} did not compile:\n{' '.join(command)}\n{result.stderr}")
    temporary.replace(target)


def build(out: Path = HERE) -> list[Path]:
    """Builds every library into `out` and returns their paths. `tensors` and `recording`, without which calls take
    longer and nothing else is different, need Python's headers, which some systems have in a package of their own: they
    are left out there.

    Raises:
        BuildError: there is no compiler, no torch, or the compiler failed.
    """
    out.mkdir(parents=True, exist_ok=True)
    torch, version = package_dir("torch"), importlib.metadata.version("torch")
    built, running = [], []

    def add(stem: str, names: list[str], *headers: Path) -> None:
        built.append(out / library_name(stem, version))
        include = [torch / "include", *headers]
        running.append(pool.submit(compile_library, HERE / f"{stem}.cpp", built[-1], include, [torch / "lib"], names))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        add("bridge", ["c10", "torch_cpu"], package_dir("jaxlib") / "include")  # takes longest
        for stem in ("writes", "sparse", *KERNELS):
            add(stem, ["c10", "torch_cpu"])
        add("guard", ["c10"])
        python = Path(sysconfig.get_path("include"))
        if (python / "Python.h").exists():
            for stem in ("tensors", "recording"):
                add(stem, ["c10", "torch_cpu", "torch_python"], python)
    for each in running:
        each.result()
    return built


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the native part of lazy_runtime for the installed torch.")
    parser.add_argument("--out", type=Path, default=HERE, help="folder for the libraries (default: the package's own)")
    try:
        for path in build(parser.parse_args().out):
            print(f"built {path}")
    except BuildError as error:
        print(f"lazy_runtime: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
