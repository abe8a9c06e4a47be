"""The operator runner's workers and files."""

import os
import signal
import time

import pytest

from tests.operators import results, rows, share
from tests.operators.__main__ import main
from tests.operators.rows import Filter, Row
from tests.operators.run import run


def row(entry, **changed):
    return Row(
        **{"database": "op_db", "direction": "forward", "dtype": "float32", "road": "lazy", **changed, "entry": entry}
    )


def serve(connection, samples):
    """A worker whose rows say what happens to it."""
    connection.send("ready")
    while True:
        try:
            asked = connection.recv()
        except EOFError:
            return
        if asked.entry == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if asked.entry == "hang":
            time.sleep(60)
        connection.send({**asked.__dict__, "outcome": "pass"})


def test_a_crash_or_a_hang_costs_one_row():
    wanted = [row(entry) for entry in ("abs", "crash", "add", "hang", "sub")]
    outcomes = {}
    run(wanted, lambda each: outcomes.update({each["entry"]: each}), workers=1, timeout=2.0, serve=serve)
    assert {entry: each["outcome"] for entry, each in outcomes.items()} == {
        "abs": "pass", "crash": "fail", "add": "pass", "hang": "fail", "sub": "pass",
    }  # fmt: skip
    assert "SIGSEGV" in outcomes["crash"]["error"]
    assert "more than 2 s" in outcomes["hang"]["error"]


def fail_to_start(connection, samples):
    raise SystemExit(1)


def test_workers_that_cannot_start_end_the_run():
    with pytest.raises(RuntimeError, match="could not start"):
        run([row("abs")], lambda each: None, workers=1, serve=fail_to_start)


def test_the_last_outcome_of_a_row_counts(tmp_path):
    path = tmp_path / "rows.jsonl"
    for outcome in ("fail", "pass"):
        results.append({**row("abs").__dict__, "outcome": outcome}, path)
    results.append({**row("add").__dict__, "outcome": "fail"}, path)
    assert {found.entry: each["outcome"] for found, each in results.load(path).items()} == {
        "abs": "pass",
        "add": "fail",
    }


def test_passing_rows_are_read_as_they_were_written(tmp_path):
    everything = [found for found in rows.all_rows() if found.entry in ("abs", "nn_Linear", "Adam")]
    passing = [found for found in everything if (found.dtype, found.road) != ("float64", "eager")]
    assert len({found.database for found in passing}) == 3
    share.write(passing, tmp_path / "passing.txt")
    assert set(share.read(tmp_path / "passing.txt")) == set(passing)


def test_a_filter_takes_whole_names_and_rows_without_a_dtype():
    wanted = Filter(only=("linalg.svd", "a.*"), dtype=("float32",))
    assert wanted.takes(row("linalg_svd"))
    assert wanted.takes(row("add", direction="errors", dtype="any"))
    assert not wanted.takes(row("linalg_svdvals"))
    assert not wanted.takes(row("add", dtype="int64"))


def test_a_name_that_no_entry_has_is_an_error_with_the_names_it_is_in():
    with pytest.raises(SystemExit, match="whole name of an entry: nn_functional_softplus"):
        main(["run", "--only", "softplus"])


def test_what_passes_is_recorded_for_the_rows_that_are_named(tmp_path, monkeypatch):
    for function, name in (
        (results.append, "rows"),
        (results.load, "rows"),
        (share.write, "passing"),
        (share.read, "passing"),
    ):
        monkeypatch.setattr(function, "__defaults__", (tmp_path / name,))
    monkeypatch.setattr(share, "PATH", tmp_path / "passing")
    share.write([row("abs"), row("sub")])
    for entry, outcome in (("abs", "fail"), ("add", "pass"), ("sub", "fail")):
        results.append({**row(entry).__dict__, "outcome": outcome})
    assert main(["pass", "--only", "a.*"]) == 0
    assert set(share.read()) == {row("add"), row("sub")}
