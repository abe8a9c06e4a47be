import contextlib
import json

import pytest

from benchmarks.__main__ import main
from benchmarks.regression import against, checkout
from tests.benchmarks import simulated


def _write(folder, before, after):
    arguments = ["gate"]
    for option, records in (("--baseline", before), ("--results", after)):
        path = folder / f"{option[2:]}.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        arguments += [option, str(path)]
    return arguments


@pytest.mark.parametrize(
    ("slower", "status", "verdict"), [([], 0, "no regression"), (simulated.MODELS, 1, "regression of")]
)
def test_two_files(tmp_path, capsys, slower, status, verdict):
    summary = tmp_path / "summary.md"
    files = _write(tmp_path, *simulated.two_runs(0, slower))
    assert main([*files, "--summary", str(summary)]) == status
    assert f"## Performance: {verdict}" in capsys.readouterr().out
    assert f"## Performance: {verdict}" in summary.read_text()


def test_allowances(tmp_path, capsys):
    files = _write(tmp_path, *simulated.two_runs(0, ["resnet18"]))
    assert main([*files, "--allow-geomean", "0.5"]) == 1
    assert main([*files, "--allow-geomean", "0.5", "--allow", "0.07,resnet18=0.3"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "gate needs --baseline FILE and --results FILE, or --against REV"),
        (["--results", "x"], "gate needs --baseline FILE and --results FILE, or --against REV"),
        (["--against", "HEAD", "--results", "x"], "it takes no --baseline and no --results"),
        (["--baseline", "no_such_file", "--results", "x"], "no_such_file"),
        (["--against", "no-such-commit"], "there is no commit 'no-such-commit'"),
        (["--against", "HEAD", "--modes", "openxla_step"], "the test inference has none: use --test step"),
        (["--against", "HEAD", "--image-size", "8"], "takes images of at least 32 pixels a side"),
        (["--against", "HEAD", "--plant", "0.5"], "expected a number of at least 1, got '0.5'"),
        (["--against", "HEAD", "--allow", "resnet=0.1"], "expected SHARE or MODEL=SHARE"),
        (["--against", "HEAD", "--allow", "5"], "expected SHARE or MODEL=SHARE"),
    ],
)
def test_bad_input_says_what_would_be_good(arguments, message, capsys):
    with pytest.raises(SystemExit) as error:
        main(["gate", *arguments])
    assert error.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_another_machine(tmp_path, capsys):
    before, after = simulated.two_runs(0)
    machine = {**simulated.MACHINE, "cpu": "Xeon"}
    with pytest.raises(SystemExit):
        main(_write(tmp_path, [{**before[0], "machine": machine}, *before[1:]], after))
    assert "the baseline counts only on the kind of machine that it names" in capsys.readouterr().err


@pytest.mark.parametrize(("times", "status", "verdict"), [(1.0, 0, "no regression"), (1.25, 1, "**fell**")])
def test_what_looks_like_a_fall_is_measured_again(tmp_path, monkeypatch, capsys, times, status, verdict):
    checked_out = tmp_path / "tree"
    measured = []

    def measure_both(requests, tree, *, plant, swapped, tell, done):
        assert tree == checked_out
        measured.append((swapped, [request.model for request in requests]))
        slower = 1.1 if len(measured) == 1 else times
        models = [request.model for request in requests]
        return against.Both(*simulated.in_turns(len(measured), ["resnet18"], times=slower, models=models))

    monkeypatch.setattr(against, "measure_both", measure_both)
    monkeypatch.setattr(checkout, "checkout", lambda revision: contextlib.nullcontext(checked_out))
    models = ["squeezenet1_1", "resnet18", "mobilenet_v2"]
    assert main(["gate", "--against", "HEAD", "--allow-geomean", "0.5", "--models", ",".join(models)]) == status
    assert measured[:2] == [(False, models), (True, ["resnet18"])]
    printed = capsys.readouterr().out
    assert verdict in printed
    assert (
        f"What looked like a fall was measured by further processes, times in all: resnet18 {len(measured)}." in printed
    )
