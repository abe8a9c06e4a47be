"""Builds the C++ part of lazy_runtime along with the package; all else stands in setup.cfg."""

import importlib.util
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

BUILD_SCRIPT = Path(__file__).resolve().parent / "lazy_runtime" / "native" / "build.py"


class BuildNative(build_py):
    """Compiles the libraries beside the Python files, for the torch that the package will run with.

    pip runs this in an environment of its own, without that torch; `python -I` leaves it and sees the real one. The
    headers of jaxlib, which pip installs later, are those of this environment. Where there is no torch yet or no
    compiler, the package installs all the same, and its first use builds what is missing or says what to do.
    """

    def run(self):
        super().run()
        out = BUILD_SCRIPT.parent if self.editable_mode else Path(self.build_lib) / "lazy_runtime" / "native"
        if not self.editable_mode:
            for old in out.glob("*.so"):  # of earlier builds, for other sources or another torch
                old.unlink()
        command = [sys.executable, "-I", str(BUILD_SCRIPT), "--out", str(out)]
        jaxlib = importlib.util.find_spec("jaxlib")
        if jaxlib is not None and jaxlib.submodule_search_locations:
            command += ["--jaxlib", str(next(iter(jaxlib.submodule_search_locations)))]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        self.announce((result.stdout + result.stderr).strip(), level=3)
        if result.returncode != 0:
            sys.stderr.write(f"the C++ part was not built, and will be at the first use of xla:\n{result.stderr}")


class BinaryDistribution(Distribution):
    """The wheel is tied to the platform, by its C++ part."""

    def has_ext_modules(self):
        return True


setup(cmdclass={"build_py": BuildNative}, distclass=BinaryDistribution)
