"""What all tests share."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import garbage
from tests.fork_server import ForkServer

# Programs that earlier runs have left on disk would decide what a test compiles. Processes that tests start inherit it.
os.environ["XLA_PERSISTENT_CACHE_PATH"] = "0"

# XLA splits each program into parts that it compiles side by side; where two workers have two processors the parts add
# nothing but a seventh of the time.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_parallel_codegen_split_count=1".strip()

# As many processes as processors are busy, each with as many threads: one that waits must not spin.
os.environ["OMP_WAIT_POLICY"] = "passive"

# Processes that tests start collect as rarely.
_STARTUP = str(Path(__file__).parent / "startup")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [_STARTUP, os.environ.get("PYTHONPATH")]))
garbage.collect_less()


def pytest_collection_finish() -> None:
    """The modules of torch, of jax and of the tests are a million objects."""
    garbage.freeze()


@pytest.fixture(scope="module", autouse=True)
def collect_own_garbage() -> Iterator[None]:
    yield
    garbage.freeze()


_TESTS = Path(__file__).parent

#: What compiles as users do: numbers of several processes are compared bit for bit, kernels and memory have bounds. So
#: do fuzzing, models, examples, benchmarks, libraries, and all processes that tests start.
_AS_USERS = (
    "lazy_runtime/native",
    "lazy_runtime/platform",
    "lazy_runtime/processes",
    "lazy_runtime/torch_xla",
    "openxla_backend/execution",
    "openxla_backend/inference",
    "openxla_backend/packaging",
    "openxla_backend/test_regions.py",
)


def _compiles_quickly(path: Path) -> bool:
    if any(path.is_relative_to(_TESTS / each) for each in _AS_USERS):
        return False
    return any(path.is_relative_to(_TESTS / each) for each in ("lazy_runtime", "openxla_backend"))


@pytest.fixture(scope="module", autouse=True)
def compile_quickly(request: pytest.FixtureRequest) -> Iterator[None]:
    """Most tests run what they compile once or twice. All of XLA's passes are there, but not LLVM's optimizations,
    which were a third of their time; jax has an option for that.
    """
    import jax

    jax.config.update("jax_disable_most_optimizations", _compiles_quickly(request.path))
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="session")
def fresh_process() -> Callable[..., str]:
    """Runs a snippet in a Python process of its own, for what a process decides once; gives what it printed.

    Each costs some four seconds: keep them few, and let one snippet check several things.
    """

    def run(code: str, *, status: int = 0, **environment: str) -> str:
        result = subprocess.run(
            [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **environment},
            timeout=240,
        )
        assert result.returncode == status, f"exit status {result.returncode}\n{result.stdout}\n{result.stderr}"
        return result.stdout

    return run


@pytest.fixture(scope="session")
def forked_process() -> Iterator[Callable[..., str]]:
    """As `fresh_process`, in six tenths of the time, where it does not matter that torch has been imported already:
    the snippet's process has imported nothing of this package, and no jax.
    """
    with ForkServer() as server:

        def run(code: str, *, status: int = 0, **environment: str) -> str:
            found, out, err = server.run(textwrap.dedent(code), {**os.environ, **environment}, timeout=240)
            assert found == status, f"exit status {found}\n{out}\n{err}"
            return out

        yield run


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An empty cache on disk, which this process uses for one test."""
    from lazy_runtime.cache import disk_cache
    from lazy_runtime.cache.disk_store import Store
    from lazy_runtime.compilation import compiler

    opened = Store(tmp_path / "cache", 1 << 30)
    monkeypatch.setattr(disk_cache, "_opened", opened)
    monkeypatch.setattr(disk_cache, "_is_open", True)
    yield opened
    compiler.clear()
