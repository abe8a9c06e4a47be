"""Builds the package's C++ for the torch (and jaxlib) of this interpreter: `python -m lazy_runtime.native`.

setup.py runs this file as a script in isolated mode (`python -I`), because pip builds packages in an environment that
hides the torch they will run with. Torch itself is not imported: that would take seconds, and needs numpy.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent

#: The libraries of operators of ours (`lazy_runtime_kernels::`), which programs on the CPU call.
KERNELS = (
    "pointwise",
    "winograd_gradient",
    "depthwise",
    "skinny_matmul",
    "few_queries_attention",
    "depthwise_gradient",
    "winograd",
    "recurrence",
    "attention",
    "batch_norm",
    "small_k_matmul",
)

#: What nearly every library includes, and what takes a third of its time to compile.
HEADERS = ("ATen/core/Tensor.h", "ATen/core/dispatch/Dispatcher.h", "ATen/ops/empty.h", "torch/library.h")

#: Without these calls take longer, and nothing else is different. They are tied to one version of Python, whose headers
#: they need; some systems have those in a package of their own.
PYTHON = ("tensors", "recording")


class BuildError(RuntimeError):
    """The native part could not be built; the message says what to do."""


def library_name(stem: str, version: str) -> str:
    """File name of a library built for one version of the package that it links against."""
    if stem in PYTHON:
        version = f"{version}-{sys.implementation.cache_tag}"
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


def compile_command(includes: list[Path], rest: list[str]) -> list[str]:
    """The compiler's command; what is precompiled is used only by commands with the same flags."""
    flags = ["-O2", "-fPIC", "-std=c++20", *shlex.split(os.environ.get("CXXFLAGS", ""))]
    return [*compiler().split(), *flags, *(f"-I{path}" for path in includes), *rest]


def precompile(folder: Path, includes: list[Path]) -> list[str]:
    """Compiles `HEADERS` alone, into a folder, where g++ and clang++ find the result.

    Returns: the options that make a source begin with it; none where the compiler cannot do this.
    """
    header = folder / "torch_headers.h"
    header.write_text("".join(f"#include <{name}>\n" for name in HEADERS))
    command = compile_command(includes, ["-x", "c++-header", str(header), "-o", f"{header}.gch"])
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        header.with_suffix(".h.gch").unlink(missing_ok=True)  # 300 MB, where the disk may be full
        return []
    return ["-include", str(header)]


def compile_library(
    source: Path,
    target: Path,
    includes: list[Path],
    libraries: list[Path],
    names: list[str],
    options: list[str] | None = None,
) -> None:
    """Compiles one shared library, replacing `target` only on success."""
    temporary = target.with_suffix(f".{os.getpid()}.tmp")
    linked = [*(f"-L{path}" for path in libraries), *(f"-l{name}" for name in names)]
    command = compile_command(includes, ["-shared", *(options or []), str(source), "-o", str(temporary), *linked])
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise BuildError(f"{source.name} did not compile:\n{' '.join(command)}\n{result.stderr}")
    temporary.replace(target)


def kept_library(stem: str, packages: list[Path]) -> Path | None:
    """Where a library is kept that the same sources, compiler, flags and packages made.

    Args:
        stem: the library's name.
        packages: the folders of torch, and of jaxlib where it is asked for.

    Returns: a path in the folder that `LAZY_RUNTIME_BUILDS` names, which need not exist; none where it is not set.
    """
    folder = os.environ.get("LAZY_RUNTIME_BUILDS")
    if not folder:
        return None
    version = subprocess.run([*compiler().split(), "--version"], capture_output=True, check=False).stdout
    digest = hashlib.sha256(version)
    for text in (*compile_command([], []), sys.version, stem):
        digest.update(text.encode() + b"\0")
    sources = [HERE / f"{stem}.cpp", Path(__file__), *sorted(HERE.glob("*.h"))]
    for path in (*sources, *(package / "version.py" for package in packages)):
        digest.update(path.read_bytes())
    return Path(folder) / f"{stem}-{digest.hexdigest()}.so"


def _copy(source: Path, target: Path) -> None:
    """Copies a library so that no other process sees a part of it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_suffix(f".{os.getpid()}.tmp")
    shutil.copyfile(source, temporary)
    temporary.replace(target)


def python_headers() -> Path:
    return Path(sysconfig.get_path("include"))


def stems() -> tuple[str, ...]:
    """The libraries that can be built here, those first that take longest; without Python's headers not `PYTHON`."""
    python = PYTHON if (python_headers() / "Python.h").exists() else ()
    return ("bridge", *python, "in_place", "sparse", *KERNELS, "guard")


def build(
    out: Path = HERE,
    wanted: Collection[str] | None = None,
    built: Callable[[str, int], None] | None = None,
    jaxlib: Path | None = None,
) -> list[Path]:
    """Builds libraries into a folder and returns their paths.

    Args:
        out: the folder, which is made.
        wanted: names of libraries; by default all of `stems`.
        built: is called with the name of each library that is done, and with how many are.
        jaxlib: the package's folder with the headers of XLA's FFI; by default that of this interpreter's jaxlib.

    Raises:
        BuildError: there is no compiler, no torch, or the compiler failed.
    """
    torch, version = package_dir("torch"), importlib.metadata.version("torch")
    compiler()
    out.mkdir(parents=True, exist_ok=True)
    paths = []
    precompiled: Future[list[str]] = Future()

    def packages(stem: str) -> list[Path]:
        return [torch, jaxlib or package_dir("jaxlib")] if stem == "bridge" else [torch]

    def finish(stem: str, target: Path) -> None:
        paths.append(target)
        if built is not None:
            built(stem, len(paths))

    def compile_one(stem: str, target: Path, kept: Path | None) -> None:
        names = ["c10", "torch_cpu", *(["torch_python"] if stem in PYTHON else [])]
        includes = [package / "include" for package in packages(stem)] + ([python_headers()] if stem in PYTHON else [])
        options = precompiled.result() if precompiled.done() else []
        compile_library(HERE / f"{stem}.cpp", target, includes, [torch / "lib"], names, options)
        if kept is not None:
            _copy(target, kept)
        finish(stem, target)

    rest = []
    for stem in wanted or stems():
        target, kept = out / library_name(stem, version), kept_library(stem, packages(stem))
        if kept is not None and kept.exists():
            _copy(kept, target)
            finish(stem, target)
        else:
            rest.append((stem, target, kept))
    threads = os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(threads) as pool:
        if len(rest) > 2 * threads:  # otherwise most would be compiled before it
            precompiled = pool.submit(precompile, Path(folder), [torch / "include"])
        running = [pool.submit(compile_one, *each) for each in rest]
        try:
            for each in running:
                each.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # what is being compiled ends, the rest does not begin
            raise
    return paths


def main(folder: Callable[[], Path] = lambda: HERE) -> int:
    """The command.

    Args:
        folder: where to build by default.
    """
    parser = argparse.ArgumentParser(description="Build the native part of lazy_runtime for the installed torch.")
    parser.add_argument("--out", type=Path, help="folder for the libraries (default: the one that is looked into)")
    parser.add_argument("--jaxlib", type=Path, help="folder of the jaxlib whose headers to use where none is installed")
    given = parser.parse_args()
    jaxlib = given.jaxlib if importlib.util.find_spec("jaxlib") is None else None
    try:
        for path in build(given.out or folder(), jaxlib=jaxlib):
            print(f"built {path}")
    except (BuildError, OSError) as error:
        print(f"lazy_runtime: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
