import pytest

from benchmarks.__main__ import main
from benchmarks.models import MODELS, SETS
from benchmarks.modes import MODES


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--models", "resnet"], f"unknown model 'resnet': the names are {', '.join([*SETS, *MODELS])}"),
        (["run", "--modes", "lazy,dynamo"], f"unknown mode 'dynamo': the names are {', '.join(MODES)}"),
        (["verify", "--test", "train"], "unknown test 'train': the names are inference, training"),
        (["run", "--models", ","], "no model was named"),
        (["run", "--modes", "openxla_step"], "the tests inference and training have none: use --test step"),
        (["verify", "--modes", "lazy,openxla_step", "--test", "step,training"], "the test training has none"),
        (["run", "--modes", "eager,torch_xla"], "mode torch_xla cannot be run: only `compare` has it"),
        (["run", "--modes", "inductor_freezing"], "mode inductor_freezing has no test training: use --test inference"),
        (["run", "--loop", "30"], "--loop is a number of training steps: it needs --test step"),
        (["run", "--loop", "0"], "expected a whole number of at least 1, got '0'"),
        (["run", "--batch-size", "0"], "expected a whole number of at least 1, got '0'"),
        (["run", "--models", "alexnet", "--image-size", "32"], "alexnet takes images of at least 64 pixels a side"),
        (["table", "no_such_file.jsonl"], "no_such_file.jsonl"),
    ],
)
def test_bad_arguments_say_what_would_be_good(arguments, message, capsys):
    with pytest.raises(SystemExit) as error:
        main(arguments)
    assert error.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_run_from_the_command_to_the_tables(tmp_path, capfd):
    results = tmp_path / "results.jsonl"
    small = ["--models", "squeezenet1_1", "--image-size", "32", "--batch-size", "1", "--repeat", "3"]
    assert main(["run", *small, "--output", str(results)]) == 0
    printed = capfd.readouterr().out
    assert "### Inference, batch 1: speedup of openxla" in printed
    assert "### Training, batch 1: speedup of openxla" in printed
    assert "failed" not in printed

    page = tmp_path / "page.md"
    page.write_text("before\n<!-- results -->\nold\n<!-- /results -->\nafter\n")
    assert main(["table", str(results), "--into", str(page)]) == 0
    tables = capfd.readouterr().out
    assert tables.strip() in printed
    assert page.read_text() == f"before\n<!-- results -->\n{tables}<!-- /results -->\nafter\n"
    page.write_text("no marks\n")
    with pytest.raises(SystemExit):
        main(["table", str(results), "--into", str(page)])
    assert "has no lines <!-- results --> and <!-- /results -->" in " ".join(capfd.readouterr().err.split())


def test_loops_of_steps_from_the_command_to_the_tables(capfd):
    small = ["--models", "squeezenet1_1", "--image-size", "32", "--batch-size", "1", "--repeat", "3"]
    assert main(["run", *small, "--test", "step", "--modes", "lazy,openxla", "--loop", "2"]) == 0
    printed = capfd.readouterr().out
    assert "### Step, batch 1, loops of 2: speedup of openxla" in printed
    assert "### Step, batch 1, loops of 2: executions, compiles per step" in printed
    assert "failed" not in printed
