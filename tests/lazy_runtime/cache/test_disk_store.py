"""Entries in a directory: what is written is read, what is torn or unsafe is not, and the oldest make room."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from lazy_runtime.cache import disk_store
from lazy_runtime.cache.disk_store import OccupiedError, Store, TornError, UnsafeError

BOUND = 1 << 20
WRITER = """
    import runpy, sys
    source, path, bound, count = sys.argv[1:]
    store = runpy.run_path(source)["Store"](path, int(bound))  # without the package, whose torch takes seconds
    print("ready", flush=True)
    for number in range(int(count)):
        name = f"{number % 7}"
        store.write(name, {"name": name}, name.encode() * 50_000)
"""


def writer(path, bound, count):
    command = [sys.executable, "-c", textwrap.dedent(WRITER), disk_store.__file__, str(path), str(bound), str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "cache", BOUND)


def file_of(store, name):
    return store.path / f"{name}.xla"


def test_what_is_written_is_read(store):
    assert store.read("a") is None
    store.write("a", {"numbers": [1, 2]}, b"payload")
    store.write("b", {}, b"")
    store.write("b", {}, b"again")
    assert store.read("a") == ({"numbers": [1, 2]}, b"payload")
    assert Store(store.path, BOUND).read("b") == ({}, b"again")
    assert sorted(path.name for path in store.path.iterdir()) == ["a.xla", "b.xla", "eviction.lock"]


def test_only_the_owner_has_access(store):
    store.write("a", {}, b"payload")
    assert {path.stat().st_mode & 0o077 for path in (store.path, *store.path.iterdir())} == {0}


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o755])
def test_a_directory_that_is_open_to_others_is_refused(tmp_path, mode):
    tmp_path.chmod(mode)
    with pytest.raises(UnsafeError, match=f"open to other users: run `chmod 700 {tmp_path}`"):
        Store(tmp_path, BOUND)


def test_a_directory_of_somebody_else_is_refused(store, monkeypatch):
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    with pytest.raises(UnsafeError, match=f"belongs to user {me}"):
        Store(store.path, BOUND)
    store.path.chmod(0o755)
    if me == 0:  # what root has installed may be read
        Store(store.path, BOUND, readonly=True)


def test_a_file_that_others_can_write_is_not_read(store):
    store.write("a", {}, b"payload")
    file_of(store, "a").chmod(0o620)
    with pytest.raises(UnsafeError, match="written by other users"):
        store.read("a")


def test_a_link_is_not_followed(store, tmp_path):
    store.write("a", {}, b"payload")
    file_of(store, "a").rename(tmp_path / "elsewhere")
    file_of(store, "a").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        store.read("a")


def test_every_torn_entry_is_told(store):
    store.write("a", {"x": 1}, bytes(range(256)))
    whole = file_of(store, "a").read_bytes()
    torn = [whole[:length] for length in (0, 1, 14, 15, 40, 47, 50, 60, len(whole) - 1)]
    torn += [whole + b"x", whole[:-100] + bytes(100), bytes(len(whole))]
    torn += [whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :] for place in range(0, len(whole), 7)]
    for content in torn:
        file_of(store, "a").write_bytes(content)
        with pytest.raises(TornError):
            store.read("a")
        assert store.read("a") is None  # and is gone


def test_readonly_changes_nothing(store):
    store.write("a", {}, b"payload")
    file_of(store, "a").write_bytes(b"torn")
    store.write("b", {}, b"payload")
    os.utime(file_of(store, "b"), (1, 1))
    readonly = Store(store.path, BOUND, readonly=True)
    with pytest.raises(TornError):
        readonly.read("a")
    assert readonly.read("b") == ({}, b"payload")
    readonly.remove("b")
    assert file_of(store, "a").exists()
    assert file_of(store, "b").stat().st_mtime == 1
    with pytest.raises(FileNotFoundError):
        Store(store.path / "absent", BOUND, readonly=True)


def test_the_least_recently_used_make_room(store):
    for number in range(9):
        store.write(str(number), {}, bytes(100_000))
        os.utime(file_of(store, str(number)), (1000 + number, 1000 + number))
    store.read("0")  # used now
    store.write("new", {}, bytes(200_000))
    kept = {path.stem for path in store.path.glob("*.xla")}
    assert {"0", "new", "8"} <= kept
    assert "1" not in kept
    assert sum(path.stat().st_size for path in store.path.glob("*.xla")) <= BOUND


def test_what_is_larger_than_all_is_not_kept(store):
    assert store.write("a", {}, bytes(BOUND)) == 0
    assert store.read("a") is None


def aged(path, content, age=7200):
    path.write_bytes(content)
    os.utime(path, (time.time() - age, time.time() - age))


def test_what_killed_writers_left_is_removed(store):
    begun = disk_store.MAGIC + b"half"
    aged(store.path / "a.12.0123abcd.tmp", begun)
    aged(store.path / "0a-0b.12.0123abce.tmp", b"")
    aged(store.path / "a.12.0123abcf.tmp", begun, age=60)
    store.evict()
    assert {path.name for path in store.path.glob("*.tmp")} == {"a.12.0123abcf.tmp"}


def test_files_of_others_stay(tmp_path):
    """A user may name a directory that has other files, with names like ours."""
    store = Store(tmp_path / "cache", 1000)
    entry, begun = disk_store._pack({}, bytes(400)), disk_store.MAGIC + b"half"
    others = {
        "model.xla": bytes(5000),
        "empty.xla": b"",
        "notes.tmp": begun,
        "a.12.0123abcd.tmp": b"something else",
        "b.12.0123abcd.tmp.bak": begun,
        "my file.xla": entry,
    }
    for name, content in others.items():
        aged(store.path / name, content)
    outside = tmp_path / "outside.xla"
    aged(outside, entry)
    (store.path / "link.xla").symlink_to(outside)
    (store.path / "link.12.0123abcd.tmp").symlink_to(outside)
    os.mkfifo(store.path / "pipe.xla")
    (store.path / "folder.xla").mkdir()
    for number in range(6):
        store.write(str(number), {}, bytes(300))
    store.evict()
    assert {name: (store.path / name).read_bytes() for name in others} == others
    assert outside.read_bytes() == entry
    kept = {path.name for path in store.path.glob("*.xla")} - set(others)
    assert {"link.xla", "pipe.xla", "folder.xla", "5.xla"} <= kept
    assert "0.xla" not in kept


@pytest.mark.parametrize("kind", ["link", "parent"])
def test_a_link_that_others_can_make_is_refused(tmp_path, kind):
    shared, mine = tmp_path / "shared", tmp_path / "mine"
    shared.mkdir()
    shared.chmod(0o1777)
    Store(mine / "cache", BOUND).write("a", {}, b"payload")
    (shared / "link").symlink_to(mine / "cache" if kind == "link" else mine)
    for readonly in (False, True):
        with pytest.raises(UnsafeError, match=f"symbolic link that other users can make: .*{mine}"):
            Store(shared / "link" if kind == "link" else shared / "link" / "cache", BOUND, readonly)
    (tmp_path / "own").symlink_to(mine / "cache")
    assert Store(tmp_path / "own", BOUND).read("a") == ({}, b"payload")


def occupy(path, kind):
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("nowhere")


@pytest.mark.parametrize("kind", ["pipe", "folder", "link"])
def test_what_has_the_place_of_an_entry_stays(store, kind):
    occupy(file_of(store, "a"), kind)
    found = file_of(store, "a").lstat()
    with pytest.raises((UnsafeError, OSError), match=r"not a regular file|symbolic links"):
        store.read("a")
    with pytest.raises(OccupiedError, match="is not a file of this user"):
        store.write("a", {}, b"payload")
    store.remove("a")
    assert list(store.headers("a")) == []
    assert file_of(store, "a").lstat() == found
    assert list(store.path.glob("*.tmp")) == []
    store.write("b", {}, b"payload")
    assert store.read("b") == ({}, b"payload")


@pytest.mark.parametrize("kind", ["pipe", "folder", "link"])
def test_what_has_the_place_of_the_lock_stays(store, kind):
    occupy(store.path / "eviction.lock", kind)
    store.write("a", {}, b"payload")
    store.evict()
    assert store.read("a") == ({}, b"payload")


@pytest.mark.parametrize("header", [b"[1]", b"1", b"null", b"{", b"\xff", b"[" * 100_000])
def test_a_header_that_is_no_object_is_torn(store, header):
    body = len(header).to_bytes(8, "little") + header + b"payload"
    file_of(store, "a").write_bytes(disk_store.MAGIC + hashlib.sha256(body).digest() + body)
    assert list(store.headers("a")) == []
    with pytest.raises(TornError, match="its header"):
        store.read("a")


def test_what_is_too_large_is_not_read(store):
    file_of(store, "a").touch(mode=0o600)
    os.truncate(file_of(store, "a"), 1 << 42)  # has no blocks
    with pytest.raises(TornError, match="more than an entry has"):
        store.read("a")


def check_all(store):
    found = [path.stem for path in store.path.glob("*.xla")]
    for name in found:
        entry = store.read(name)
        assert entry is None or entry == ({"name": name}, name.encode() * 50_000)
    return found


def test_writers_may_be_killed_at_any_moment(store):
    moments = random.Random(0)
    for _ in range(20):
        with writer(store.path, BOUND, 1_000_000) as process:
            assert process.stdout.readline() == "ready\n"
            time.sleep(moments.uniform(0, 0.02))
            process.send_signal(signal.SIGKILL)
        check_all(store)
    store.write("after", {}, b"payload")
    store.evict()
    assert store.read("after") == ({}, b"payload")


def test_processes_write_and_evict_at_once(store):
    bound = 200_000  # of which seven entries of 50 kB take more than there is
    processes = [writer(store.path, bound, 300) for _ in range(2)]
    while any(process.poll() is None for process in processes):
        check_all(store)
    for process in processes:
        with process:
            assert process.wait() == 0
    assert 1 <= len(check_all(store)) <= 6
    Store(store.path, bound).evict()
    assert sum(path.stat().st_size for path in store.path.glob("*.xla")) <= bound
