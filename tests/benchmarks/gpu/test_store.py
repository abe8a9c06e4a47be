import json
import os
import signal
import subprocess
import sys

from benchmarks.gpu.store import LOGS, NOTES, ROWS, Store

ROW = {"record": "row", "model": "vgg16", "failure": None}


def _count(records):
    return f"{len(records)} records"


def _read(folder, name):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_each_record_is_on_the_disk_at_once(tmp_path):
    store = Store(tmp_path / "new", {"summary.md": _count})
    assert (store.folder / "summary.md").read_text() == "0 records\n"
    store.add(ROW)
    store.add({"record": "smoke", "failure": None})
    assert _read(store.folder, ROWS) == [ROW]
    assert _read(store.folder, NOTES) == [{"record": "smoke", "failure": None}]
    assert (store.folder / "summary.md").read_text() == "2 records\n"
    assert store.of("row") == [ROW]


def test_a_page_that_fails_stops_nothing(tmp_path):
    def page(records):
        raise KeyError("median_ms")

    store = Store(tmp_path, {"summary.md": page, "other.md": _count})
    store.add(ROW)
    assert "KeyError: 'median_ms'" in (tmp_path / "summary.md").read_text()
    assert (tmp_path / "other.md").read_text() == "1 records\n"
    assert _read(tmp_path, ROWS) == [ROW]


def test_what_failed_processes_print_is_kept(tmp_path):
    store = Store(tmp_path, {})
    store.log("vgg16 step tf32", "out of memory")
    assert (tmp_path / LOGS).read_text() == "--- vgg16 step tf32\nout of memory\n"


def test_a_kill_loses_no_row_that_was_added(tmp_path):
    code = (
        "import os, pathlib, signal, sys\n"
        "from benchmarks.gpu.store import Store\n"
        "store = Store(pathlib.Path(sys.argv[1]), {'summary.md': lambda records: f'{len(records)} records'})\n"
        "for number in range(3):\n"
        "    store.add({'record': 'row', 'number': number})\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    assert [row["number"] for row in _read(tmp_path, ROWS)] == [0, 1, 2]
    assert (tmp_path / "summary.md").read_text() == "3 records\n"
