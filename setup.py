"""Builds the C++ part of lazy_runtime along with the package; all else stands in setup.cfg."""

import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

BUILD_SCRIPT = Path(__file__).resolve().parent / "lazy_runtime" / "native" / "build.py"


class BuildNative(build_py):
    """Compiles the libraries beside the Python files, for the torch that the package will run with.

    pip runs this in an environment of its own, without that torch; `python -I` leaves it and sees the real one. Where
    there is no torch yet or no compiler, the package installs all the same and says at its first use what to do.
    """

    def run(self):
        super().run()
        out = BUILD_SCRIPT.parent if self.editable_mode else Path(self.build_lib) / "lazy_runtime" / "native"
        result = subprocess.run(
            [sys.executable, "-I", str(BUILD_SCRIPT), "--out", str(out)], capture_output=True, text=True, check=False
        )
        self.announce((result.stdout + result.stderr).strip(), level=3)
        if result.returncode != 0:
            sys.stderr.write(
                "warning: the C++ part was not built; run `python -m lazy_runtime.native` "
                f"once torch and a compiler are there\n{result.stderr}"
            )


class BinaryDistribution(Distribution):
    """The wheel is tied to the platform, by its C++ part."""

    def has_ext_modules(self):
        return True


setup(cmdclass={"build_py": BuildNative}, distclass=BinaryDistribution)
