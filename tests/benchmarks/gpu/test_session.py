"""A dry run from the command to the tables, with the parts of children called here: processes take seconds each."""

import json
import signal

import pytest

from benchmarks.gpu import child, session
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.child import ChildError

SMALL = ["--dry", "--models", "squeezenet1_1", "--test", "inference", "--precision", "tf32", "--modes", "eager,openxla"]


@pytest.fixture(autouse=True)
def _keep_the_handler():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def _here(function, *arguments, limit_s, environment=None):
    if function.__name__ in ("parameter_bytes", "top"):  # they are of no use to another thread's torch
        return {} if function.__name__ == "parameter_bytes" else [{"name": "dot", "ms": 1.0, "calls": 1.0}]
    if function.__module__.endswith("smoke"):
        return {"error": 0.0}
    return function(*arguments)


def test_from_the_command_to_the_tables(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(child, "call", _here)
    assert main([*SMALL, "--output", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert (tmp_path / "summary.md").read_text().strip() in printed
    assert "A dry run: nothing here was measured on a GPU." in printed
    assert "## Inference, tf32: speedup over eager" in printed
    assert "squeezenet1_1" in printed
    assert "failed" not in printed
    assert "## Kernels of squeezenet1_1 inference tf32, openxla" in printed
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [(row["record"], row.get("role")) for row in rows] == [
        ("environment", None),
        ("row", "eager"),
        ("row", "openxla"),
    ]
    assert "### Inference, batch 1: milliseconds" in (tmp_path / "tables.md").read_text()


def test_without_time_everything_is_left_out_and_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(child, "call", _here)
    assert main([*SMALL, "--minutes", "0.2", "--output", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "- the smoke test: it needs 20 s, and" in printed
    assert "- inference tf32 of squeezenet1_1:" in printed
    assert "The program ended after" in printed


def test_failures_are_kept_and_the_rest_goes_on(tmp_path, monkeypatch, capsys):
    def fails(function, *arguments, limit_s, environment=None):
        raise ChildError(f"{function.__name__} was not done after 5 s")

    def broken(self):
        raise KeyError("planner")

    monkeypatch.setattr(child, "call", fails)
    monkeypatch.setattr(session._Session, "models", broken)
    assert main([*SMALL, "--output", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "- rates: rates was not done after 5 s" in printed
    assert "- the smoke test: the C++ part was not built" in printed
    assert "- models: KeyError: 'planner'" in printed
    assert "| profiles" in printed


def test_one_that_is_stopped_says_so(tmp_path, monkeypatch):
    def stopped(self):
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(child, "call", _here)
    monkeypatch.setattr(session._Session, "models", stopped)
    with pytest.raises(SystemExit) as error:
        main([*SMALL, "--output", str(tmp_path)])
    assert error.value.code == 128 + signal.SIGTERM
    assert "The program was stopped after" in (tmp_path / "summary.md").read_text()


def test_without_a_gpu_the_command_names_the_dry_run(monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit):
        main([])
    assert "--dry runs the same program on the CPU" in capsys.readouterr().err
