"""The cache on disk with entries that anything may have happened to, and on a disk that is full."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
import warnings

import pytest
import torch

from lazy_runtime.compilation import compiler
from lazy_runtime.execution import execute
from lazy_runtime.platform import xla_devices

X = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4)


def program(number, x):
    return (x @ x.mT + number).sin() * (number + 1) if number % 2 else x.cumsum(0) - number


def check(number):
    """As in a new process: what was compiled is not in memory."""
    execute.sync(xla_devices.get())
    compiler._executables.clear()  # `clear()` collects garbage as well: seconds each time, in a process of many tests
    torch.testing.assert_close(program(number, X.to("xla")).cpu(), program(number, X), rtol=1e-12, atol=1e-12)


def flip(path, draw, others):
    content = bytearray(path.read_bytes())
    for _ in range(draw.randint(1, 5)):
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def truncate(path, draw, others):
    os.truncate(path, draw.randrange(path.stat().st_size))


def extend(path, draw, others):
    path.write_bytes(path.read_bytes() + draw.randbytes(draw.randint(1, 100)))


def overwrite(path, draw, others):
    path.write_bytes(draw.choice([b"", b"[1, 2]", draw.randbytes(500), bytes(1000)]))


def exchange(path, draw, others):
    path.write_bytes(draw.choice(others))


def forbid(path, draw, others):
    path.chmod(draw.choice([0, 0o200, 0o666, 0o622, 0o777]))


def replace(path, draw, others):
    path.unlink()
    kind = draw.randrange(4)
    if kind == 0:
        path.mkdir()
    elif kind == 1:
        os.mkfifo(path)
    else:
        path.symlink_to(draw.choice(["/dev/zero", "/nowhere", path.parent]))


DAMAGE = (flip, truncate, extend, overwrite, exchange, forbid, replace)


def corrupt(store, seed, entries):
    draw = random.Random(seed)
    for number in range(10):
        check(number)
    paths = sorted(store.path.glob("*.xla"))
    whole = {path: path.read_bytes() for path in paths}
    damaged = 0
    while damaged < entries:
        for path in paths:
            draw.choice(DAMAGE)(path, draw, [content for other, content in whole.items() if other != path])
            damaged += 1
        with warnings.catch_warnings():
            warnings.simplefilter(draw.choice(["error", "ignore"]))
            for number in range(10):
                check(number)
        for path, content in whole.items():
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            elif path.is_symlink() or path.exists():
                path.unlink()
            path.write_bytes(content)
            path.chmod(0o600)


def test_some_corrupted_entries(store):
    corrupt(store, 0, 30)


@pytest.mark.long
def test_two_hundred_corrupted_entries(store):
    corrupt(store, 1, 200)


FULL = """
    import resource, sys, torch, lazy_runtime
    from lazy_runtime.cache import disk_cache
    from lazy_runtime.common import metrics
    size = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    x = torch.arange(6.0)
    for number in range(1, 5):
        found = (x.to("xla") * number).cumsum(0).cpu()
        assert torch.equal(found, (x * number).cumsum(0)), found
        lazy_runtime.sync()
    compiled = torch.compile(lambda x: x.sin() * 2, backend="openxla")
    torch.testing.assert_close(compiled(x), x.sin() * 2)
    print(disk_cache.directory())
"""


@pytest.mark.parametrize("size", [100, 3000])
def test_a_full_disk_ends_no_program(tmp_path, size):
    """No file may grow beyond `size` bytes, the reports' included; warnings are errors."""
    files = {name: str(tmp_path / name) for name in ("XLA_METRICS_FILE", "PT_XLA_DEBUG_FILE", "XLA_SAVE_TENSORS_FILE")}
    cache = {"XLA_PERSISTENT_CACHE_PATH": str(tmp_path / "cache"), "PT_XLA_DEBUG_LEVEL": "1"}
    result = subprocess.run(
        [sys.executable, "-B", "-W", "error", "-c", textwrap.dedent(FULL), str(size)],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env={**os.environ, **files, **cache},
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "None\n"  # it is off from the first entry on that did not fit
    assert "the cache of compiled programs cannot be written and is off from here on" in result.stderr
    assert "XLA_METRICS_FILE names" in result.stderr
    assert list((tmp_path / "cache").glob("*.tmp")) == []
