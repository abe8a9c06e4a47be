import json
import os
import signal
import sys

import pytest

from benchmarks import run
from benchmarks.worker import Request

REQUEST = Request("squeezenet1_1", ("inference", "training"), ("eager", "lazy"))
ROW = {"model": "squeezenet1_1", "test": "inference", "mode": "eager", "checks": [], "failure": None}


def _ends_in_good_order(request, connection, log):
    connection.send(("step", request.model))
    connection.send(("row", ROW))


def _takes_long(request, connection, log):
    for _ in range(3):
        connection.send(("alive", "timing"))
    _ends_in_good_order(request, connection, log)


def _crashes(request, connection, log):
    _ends_in_good_order(request, connection, log)
    os.kill(os.getpid(), signal.SIGABRT)


def _exits(request, connection, log):
    sys.exit(3)


def test_how_a_process_died_is_its_last_event():
    assert list(run._events(_exits, REQUEST, os.devnull)) == [("died", "its process died of an error (exit code 3)")]


def test_rows_that_a_dead_process_owes_are_failures(monkeypatch):
    monkeypatch.setattr(run.worker, "main", _crashes)
    rows = run.run([REQUEST])[1:]
    assert [(row["test"], row["mode"], row["failure"]) for row in rows] == [
        ("inference", "eager", None),
        ("inference", "lazy", "its process died of SIGABRT"),
        ("training", "eager", "its process died of SIGABRT"),
        ("training", "lazy", "its process died of SIGABRT"),
    ]


def test_signs_of_life_are_no_steps(monkeypatch):
    monkeypatch.setattr(run.worker, "main", _takes_long)
    assert [row["failure"] for row in run.run([REQUEST])[1:]] == [None, *["its process ended early"] * 3]


def test_results_are_written_and_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr(run.worker, "main", _ends_in_good_order)
    path = tmp_path / "new" / "results.jsonl"
    records = run.run([REQUEST], path)
    assert [record["failure"] for record in records[1:]] == [None, *["its process ended early"] * 3]
    assert run.read(path) == records


@pytest.mark.parametrize("line", ["not json", "[1]", "{}", json.dumps({"record": "other"})])
def test_a_file_that_holds_no_results(tmp_path, line):
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps({"record": "environment"}) + f"\n{line}\n")
    with pytest.raises(ValueError, match=r"results\.jsonl, line 2: not a result"):
        run.read(path)
