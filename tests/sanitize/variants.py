"""How the native part is built beside the way that users have it: other compilers and levels, and sanitizers."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field

#: The tests of the C++ part: what writes, what records, the bridge, and each kernel.
NATIVE = (
    "tests/lazy_runtime/native",
    "tests/lazy_runtime/lowering/test_aten_bridge.py",
    "tests/lazy_runtime/recording/test_recording.py",
    *(
        f"tests/lazy_runtime/ops/{kernel}.py"
        for kernel in (
            "linalg/test_skinny_matmul",
            "linalg/test_small_k_matmul",
            "attention/test_attention_few_queries",
            "attention/test_attention_native",
            "nn/test_batch_statistics",
            "nn/test_recurrence_native",
            "convolution/test_depthwise_gradient",
            "convolution/test_direct_convolution",
            "convolution/test_winograd",
            "convolution/test_winograd_gradient",
        )
    ),
)

#: ... and of threads that record, read and write against each other.
THREADED = (*NATIVE, "tests/lazy_runtime/test_threads.py")


@dataclass(frozen=True)
class Variant:
    """One way to build and test.

    Attributes:
        compilers: commands to look for; the first that is there is taken.
        flags: what follows the build's own flags.
        runtime: name of the sanitizer's library, which must be loaded before Python.
        tests: what is run.
        environment: variables of the tests' process.
    """

    compilers: tuple[str, ...]
    flags: str
    runtime: str | None = None
    tests: tuple[str, ...] = NATIVE
    environment: Mapping[str, str] = field(default_factory=dict)

    def compiler(self) -> str:
        """The compiler's command.

        Raises:
            RuntimeError: none is installed.
        """
        found = next((name for name in self.compilers if shutil.which(name)), None)
        if found is None:
            raise RuntimeError(f"none of {', '.join(self.compilers)} is installed: install one of them")
        return found

    def preloaded(self) -> str:
        """Paths of what is loaded before Python; empty without a sanitizer. Exceptions of libraries that bring C++'s
        own along are caught only if that is there first.
        """
        names = (self.runtime, "libstdc++.so.6") if self.runtime else ()
        return " ".join(map(self._path, names))

    def _path(self, name: str) -> str:
        command = [self.compiler(), f"-print-file-name={name}"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


_CLANG = ("clang++", *(f"clang++-{version}" for version in range(22, 14, -1)))
_TRACES = "-g1 -fno-omit-frame-pointer"

VARIANTS = {
    **{f"gcc-O{level}": Variant(("g++",), f"-O{level}") for level in (1, 2, 3)},
    **{f"clang-O{level}": Variant(_CLANG, f"-O{level}") for level in (1, 2, 3)},
    # Python leaks by design, and torch's and jaxlib's containers are not annotated.
    "address": Variant(
        ("g++",),
        f"-O1 {_TRACES} -fsanitize=address -fsanitize=undefined -fno-sanitize=vptr -fno-sanitize-recover=undefined",
        runtime="libasan.so",
        environment={
            "ASAN_OPTIONS": "detect_leaks=0:detect_container_overflow=0:alloc_dealloc_mismatch=0",
            "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        },
    ),
    # Of torch, jaxlib and Python, which are not built for it, locks are seen and accesses to memory are not. OpenMP's
    # barriers are told to it by `native/openmp.h`.
    "thread": Variant(
        ("g++",),
        f"-O1 {_TRACES} -fsanitize=thread",
        runtime="libtsan.so",
        tests=THREADED,
        environment={"TSAN_OPTIONS": "ignore_noninstrumented_modules=1:halt_on_error=1"},
    ),
}
