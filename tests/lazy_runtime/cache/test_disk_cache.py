"""Compiled programs on disk: a later process uses them as they are, or compiles."""

from __future__ import annotations

import ast
import os

import pytest
import torch

from lazy_runtime.cache import disk_cache, disk_key
from lazy_runtime.common import metrics
from lazy_runtime.compilation import compiler
from lazy_runtime.execution import execute
from lazy_runtime.lowering import aten_bridge
from lazy_runtime.platform import xla_devices

COUNTERS = ("PersistentCacheHit", "PersistentCacheMiss", "CachedCompile", "UncachedCompile")
MISS, HIT = (0, 1, 0, 1), (1, 0, 1, 0)


def run(function, *tensors):
    """What the function gives on xla, and what was counted. Nothing compiled is in memory, as in a new process."""
    moved = [x.to("xla") for x in tensors]
    execute.sync(device())
    compiler.clear()
    metrics.clear()
    result = function(*moved).cpu()
    return result, tuple(map(metrics.value, COUNTERS))


def device():
    return xla_devices.get()


def entries(store):
    return sorted(store.path.glob("*.xla"))


def one_program(x):
    return (x @ x.mT).relu() + 7.25


X = torch.linspace(-1, 1, 12).reshape(3, 4)


def test_a_program_is_compiled_once_for_all_processes(store):
    first, counted = run(one_program, X)
    assert counted == MISS
    second, counted = run(one_program, X)
    assert counted == HIT
    torch.testing.assert_close(first, one_program(X))
    assert torch.equal(first, second)
    assert [found.outcome for found in disk_cache.lookups()[-2:]] == ["miss", "hit"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.linalg.solve(x @ x.mT + torch.eye(3, device=x.device), x),
        lambda x: torch.linalg.svdvals(x),
        lambda x: torch.nn.functional.conv2d(x[None, None], x[None, None, :2, :2]),  # torch's kernel
        lambda x: torch.cdist(x, x, 1.5).sort(-1)[0].topk(2)[0],
        lambda x: torch.fft.fft(x).abs(),
        lambda x: torch.nn.functional.max_pool2d(x[None, None], 2),
        lambda x: x.double().cumsum(1).argmax(1) + 2**40,
    ],
)
def test_programs_of_all_kinds_are_kept(store, function):
    assert run(function, X)[1][1] > 0
    result, counted = run(function, X)
    assert counted[1] == counted[3] == 0
    torch.testing.assert_close(result, function(X), rtol=1e-5, atol=1e-5)


def test_random_numbers_go_on(store):
    def noise(x):
        return torch.rand_like(x)

    first = run(noise, X)[0]
    second, counted = run(noise, X)
    assert counted == HIT
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    assert torch.equal(run(noise, X)[0], first)


def test_donated_buffers_are_reused(store):
    def twice(x):
        y = x * 3.5
        execute.sync(device())
        buffer = torch._from_functional_tensor(y).handle.value.array
        y += 1
        execute.sync(device())
        assert buffer.is_deleted()
        return y

    for _ in range(2):
        assert torch.equal(run(twice, X)[0], X * 3.5 + 1)


def test_layouts_come_back(store):
    images, filters = torch.rand(1, 3, 5, 5), torch.rand(4, 3, 1, 1)

    def chain(x, w):
        y = torch.nn.functional.conv2d(x, w)
        execute.sync(device())
        assert torch._from_functional_tensor(y).handle.value.channels_last
        return y.flatten(1).cumsum(1)

    (first, counted), (second, again) = (run(chain, images, filters) for _ in range(2))
    assert (counted[1], again[1]) == (2, 0)
    assert torch.equal(first, second)
    torch.testing.assert_close(first, torch.nn.functional.conv2d(images, filters).flatten(1).cumsum(1))


def test_what_a_program_checks_is_raised(store):
    """Exceptions are made by code, which no entry holds."""
    index = torch.tensor([0, 9])
    for _ in range(2):
        with pytest.raises(IndexError, match=r"index 9 is out of bounds(?s:.*)called at .*test_disk_cache\.py"):
            run(lambda x, i: x[i], X, index)
    assert metrics.value("PersistentCacheHit") > 0


def test_kernels_that_raise_are_told(store):
    matrix = torch.zeros(2, 2)
    for _ in range(2):
        with pytest.raises(torch.linalg.LinAlgError, match="singular"):
            run(torch.linalg.inv, matrix)
    assert metrics.value("PersistentCacheHit") > 0


@pytest.mark.parametrize("damage", [lambda content: content[:-10], lambda content: bytes(len(content)), lambda _: b""])
def test_a_torn_entry_is_a_miss_and_a_warning(store, damage):
    expected, _ = run(one_program, X)
    (path,) = entries(store)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.warns(RuntimeWarning, match="cannot be used and is compiled again"):
        found, counted = run(one_program, X)
    assert counted == MISS
    assert metrics.value("PersistentCacheMiss::unreadable") == 1
    assert torch.equal(found, expected)
    assert run(one_program, X)[1] == HIT  # it was written anew


def lie(store, name, **changed):
    """Writes an entry anew, with a right digest and another header."""
    entry = store.read(name)
    store.write(name, {**entry.header, **changed}, entry.payload)


@pytest.mark.parametrize(
    "changed", [{"physical": ["a"]}, {"physical": [7]}, {"checks": "1"}, {"checks": True}, {"custom_calls": None}]
)
def test_a_header_of_wrong_types_is_a_miss(store, changed):
    run(one_program, X)
    (path,) = entries(store)
    lie(store, path.stem, **changed)
    with pytest.warns(RuntimeWarning, match="does not load and is compiled again"):
        found, counted = run(one_program, X)
    assert counted == MISS
    torch.testing.assert_close(found, one_program(X))
    assert run(one_program, X)[1] == HIT  # it was written anew


def test_a_folder_in_the_place_of_an_entry_leaves_the_rest_of_the_cache(store):
    run(one_program, X)
    (path,) = entries(store)
    path.unlink()
    path.mkdir()
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match="not a regular file"):
            assert run(one_program, X)[1] == MISS
    assert [run(lambda x: x * 2, X)[1] for _ in range(2)] == [MISS, HIT]


def test_warnings_that_are_errors_do_not_end_the_program(store, caplog):
    """The tests of this project make errors of warnings, as `python -W error` does."""
    run(one_program, X)
    (path,) = entries(store)
    path.write_bytes(b"torn")
    found, counted = run(one_program, X)
    assert counted == MISS
    torch.testing.assert_close(found, one_program(X))
    assert ["is compiled again" in record.message for record in caplog.records] == [True]


def test_an_entry_under_another_name_is_a_miss(store):
    run(one_program, X)
    (path,) = entries(store)
    content = path.read_bytes()
    path.unlink()
    run(lambda x: x * 2, X)
    (other,) = entries(store)
    other.write_bytes(content)
    with pytest.warns(RuntimeWarning, match="it is another program's"):
        found, counted = run(lambda x: x * 2, X)
    assert counted == MISS
    assert torch.equal(found, X * 2)


def test_a_payload_that_does_not_load_is_a_miss(store):
    run(one_program, X)
    (path,) = entries(store)
    entry = store.read(path.stem)
    store.write(path.stem, entry.header, entry.payload[:1000])
    with pytest.warns(RuntimeWarning, match="does not load and is compiled again"):
        found, counted = run(one_program, X)
    assert counted == MISS
    assert metrics.value("PersistentCacheDeserializeFailure") == 1
    torch.testing.assert_close(found, one_program(X))


def test_a_miss_says_what_has_changed(store, monkeypatch):
    run(one_program, X)
    fixed = disk_key._fixed(device())
    monkeypatch.setattr(disk_key, "_fixed", lambda device: {**fixed, "jaxlib": "0.99.0"})
    assert run(one_program, X)[1] == MISS
    assert disk_cache.lookups()[-1].reason == f"jaxlib was {fixed['jaxlib']}, is 0.99.0"
    assert metrics.value("PersistentCacheMiss::other_environment") == 1
    assert len(entries(store)) == 2


def test_a_file_that_others_can_write_is_not_loaded(store):
    run(one_program, X)
    (path,) = entries(store)
    path.chmod(0o666)
    with pytest.warns(RuntimeWarning, match="can be written by other users"):
        assert run(one_program, X)[1] == MISS


def test_readonly_writes_nothing(store):
    run(one_program, X)
    before = {path: path.stat().st_mtime_ns for path in store.path.iterdir()}
    store.readonly = True
    assert run(one_program, X)[1] == HIT
    assert run(lambda x: x * 2, X)[1] == MISS
    assert {path: path.stat().st_mtime_ns for path in store.path.iterdir()} == before


def test_host_callbacks_are_not_kept(store, monkeypatch):
    """Where a program cannot call torch's kernels it calls back into Python: an object of this process."""
    monkeypatch.setattr(aten_bridge, "is_built", lambda: False)

    def called(x):
        return torch.linalg.ldl_factor(x @ x.mT)[0]

    for _ in range(2):
        found, counted = run(called, X)
        assert counted[1] == counted[3] == 1
        assert metrics.value("PersistentCacheUncacheable") == 1
        torch.testing.assert_close(found, called(X))
    assert "belongs to this process" in disk_cache.lookups()[-1].reason


def test_a_full_disk_turns_it_off(store, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(RuntimeWarning, match="No space left on device"):
        assert run(one_program, X)[1] == MISS
    assert run(one_program, X)[1] == (0, 0, 0, 1)
    assert entries(store) == []


def test_initialize_comes_before_all_else(store):
    with pytest.raises(RuntimeError, match="before any computation"):
        disk_cache.initialize("anywhere")
    with pytest.raises(ValueError, match="got an empty path"):
        disk_cache.initialize("")


TRAINING = """
    import sys, torch, lazy_runtime
    from lazy_runtime.cache import disk_cache
    from lazy_runtime.common import metrics
    if {path!r}:
        disk_cache.initialize({path!r}, readonly={readonly})
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, bias=False), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
                                torch.nn.Flatten(), torch.nn.Linear(288, 5))
    images = torch.rand(2, 3, 8, 8)
    results = [torch.linalg.solve(*images[:, 0].to("xla")).sum().item()]  # LAPACK, which tracing makes ready elsewhere
    x, filters, heads = (torch.rand(size).to("xla") for size in ((2, 32, 32, 32), (32, 32, 3, 3), (1, 2, 20, 16)))
    results.append(torch.nn.functional.conv2d(x, filters, padding=1).sum().item())  # kernels of ours, as tracing says
    results.append(torch.nn.functional.scaled_dot_product_attention(heads, heads, heads).sum().item())
    for device, compiled in (("xla", False), ("xla", True), ("cpu", True)):
        x = images.to(device)
        there = torch.nn.Sequential(*model).to(device).train()
        run = torch.compile(there, backend="openxla") if compiled else there
        loss = run(x).square().mean()
        loss.backward()
        results.append(loss.item())
        results += [p.grad.cpu().sum().item() for p in there.parameters()]
    names = {names}
    print((results, [metrics.value(name) for name in names], disk_cache._opened and str(disk_cache._opened.path)))
"""


def second_process(forked_process, path="", readonly=False, **environment):
    code = TRAINING.format(path=str(path), readonly=readonly, names=COUNTERS)
    return ast.literal_eval(forked_process(code, **environment))


def test_a_second_process_compiles_nothing(forked_process, tmp_path):
    environment = {"XLA_PERSISTENT_CACHE_PATH": "", "XDG_CACHE_HOME": str(tmp_path)}
    first, (hits, misses, _, compiles), where = second_process(forked_process, **environment)
    assert where == str(tmp_path / "lazy_runtime" / "xla")
    assert hits == 0
    assert misses == compiles > 0
    second, (hits, misses, _, compiles), _ = second_process(forked_process, path=where, readonly=True, **environment)
    assert (misses, compiles) == (0, 0)
    assert hits > 0
    assert second == first


def opened(path, readonly=False):
    return disk_cache._open(disk_cache._Settings(None if path is None else str(path), readonly))


def test_where_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    found = opened(None)
    assert found is not None
    assert (found.path, found.bound) == (tmp_path / "caches" / "lazy_runtime" / "xla", 2 << 30)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_MAX_BYTES", "1000")
    found = opened(None)
    assert found is not None
    assert (found.path, found.bound) == (tmp_path / ".cache" / "lazy_runtime" / "xla", 1000)
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_PATH", str(tmp_path / "here"))
    monkeypatch.setenv("XLA_PERSISTENT_CACHE_READ_ONLY", "1")
    assert disk_cache._from_environment() == (str(tmp_path / "here"), True)


def test_when_it_is_off(tmp_path, monkeypatch):
    assert opened("0") is None
    (tmp_path / "file").touch()
    with pytest.warns(RuntimeWarning, match="the cache of compiled programs is off"):
        assert opened(tmp_path / "file") is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert opened(None) is None  # nobody asked for it, so nobody is warned
    tmp_path.chmod(0o755)
    with pytest.warns(RuntimeWarning, match=f"run `chmod 700 {tmp_path}`"):
        assert opened(tmp_path) is None
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XLA_FLAGS", f"--xla_dump_to={tmp_path}")
    assert opened(tmp_path) is None
