import itertools
import json
import os
import signal
import sys
import time

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


def _waits(request, connection, log):
    """Times when it began and when it was told to go on, for `_together`."""
    began = time.monotonic()
    time.sleep(0.4 if request.model == "vgg16" else 0.0)
    ready = time.monotonic()
    connection.send(("ready", request.model))
    connection.recv()
    told = time.monotonic()
    time.sleep(0.2)
    times = {"began": began, "ready": ready, "told": told, "ended": time.monotonic()}
    connection.send(("row", {**ROW, "model": request.model, **times}))


def _dies_or_waits(request, connection, log):
    if request.model == "vgg16":
        sys.exit(3)
    _waits(request, connection, log)


def _together(*models):
    requests = [Request(model, ["inference"], ["eager"], together=True) for model in models]
    return sorted(run.run(requests)[1:], key=lambda row: row.get("told", 0.0))


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


def test_models_that_go_together_are_timed_in_turn_when_all_are_ready(monkeypatch):
    monkeypatch.setattr(run.worker, "main", _waits)
    rows = _together("resnet18", "vgg16", "alexnet")
    assert max(row["began"] for row in rows) < min(row["told"] for row in rows)
    assert max(row["ready"] for row in rows) <= rows[0]["told"]
    assert all(earlier["ended"] <= later["told"] for earlier, later in itertools.pairwise(rows))


def test_one_that_dies_keeps_no_other_waiting(monkeypatch):
    monkeypatch.setattr(run.worker, "main", _dies_or_waits)
    dead, *others = _together("resnet18", "vgg16", "alexnet")
    assert dead["failure"] == "its process died of an error (exit code 3)"
    assert [row["failure"] for row in others] == [None, None]


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
