import argparse
import re
import sys
from pathlib import Path

import pytest

import lazy_runtime
from benchmarks import compare_command, models, roofline, verify
from benchmarks.__main__ import main
from benchmarks.modes import MODES, TESTS, Program, available
from benchmarks.worker import Request

STAND_IN = Path(lazy_runtime.__file__).parent / "stand_in"


def _options(**changed):
    parser = argparse.ArgumentParser()
    compare_command.add_options(parser)
    options = parser.parse_args([])
    for name, value in changed.items():
        setattr(options, name, value)
    return options


def test_inference_comes_in_two_batch_sizes():
    made = compare_command.requests(_options(models=["vgg16"]), list(MODES))
    assert [(each.model, list(each.tests), each.batch_size) for each in made] == [
        ("vgg16", ["inference"], 1),
        ("vgg16", list(TESTS), None),
    ]
    assert made[1].modes_of("inference") == [mode for mode in MODES if mode not in ("openxla_step", "jax")]
    assert "jax" in made[1]._replace(model="llama").modes_of("inference")
    assert "inductor_freezing" not in made[1].modes_of("training")
    assert "openxla_step" in made[1].modes_of("step")


def test_modes_that_are_not_installed_are_left_out(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    missing = [mode for mode in MODES if mode in ("openvino", "torch_xla", "torch_xla_lazy") or mode.startswith("cuda")]
    assert available(MODES, None) == [mode for mode in MODES if mode not in missing]
    assert {"torch_xla", "torch_xla_lazy"} < set(available(MODES, "python"))


def test_results_are_kept_by_date_and_machine(tmp_path):
    path = compare_command.kept({"cpu": "AMD EPYC (family 26, model 2)", "cores": 2}, tmp_path)
    assert re.fullmatch(r"compare-\d{4}-\d\d-\d\d-amd-epyc-family-26-model-2-2-cores\.jsonl", path.name)
    assert compare_command._complete(_options())
    assert not compare_command._complete(_options(models=["vgg16"]))
    assert not compare_command._complete(_options(image_size=64))


def test_from_the_command_to_the_tables(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(roofline, "peak_gflops", lambda: 100.0)
    monkeypatch.setattr(roofline, "bandwidth", lambda: 20e9)
    small = ["--models", "squeezenet1_1", "--image-size", "32", "--repeat", "3", "--test", "inference"]
    output = tmp_path / "new" / "results.jsonl"
    assert main(["compare", *small, "--modes", "eager,eager_channels_last,openxla", "--output", str(output)]) == 0
    printed = capfd.readouterr().out
    assert "matrix products at 100 GFLOP/s, memory read at 20.0 GB/s" in printed
    assert "### Inference, batch 1: milliseconds" in printed
    assert "| roofline |" in re.sub(r"\s+", " ", printed)
    assert "the fastest other" in printed
    assert "failed" not in printed
    assert output.with_suffix(".md").read_text().strip() in printed
    assert main(["table", str(output)]) == 0
    assert capfd.readouterr().out.strip() in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--torch-xla", "/no/such/python"], "--torch-xla: "),
        (["--modes", "torch_xla"], "none of the modes torch_xla can be run here"),
        (["--models", "alexnet", "--image-size", "32"], "alexnet takes images of at least 64 pixels a side"),
    ],
)
def test_bad_arguments_say_what_would_be_good(arguments, message, capsys):
    with pytest.raises(SystemExit) as error:
        main(["compare", *arguments])
    assert error.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("mode", ["torch_xla", "torch_xla_lazy"])
def test_a_program_in_another_environment(monkeypatch, mode):
    """Our stand-in for torch_xla takes the part of the real one."""
    monkeypatch.setenv("PYTHONPATH", str(STAND_IN))
    request = Request("squeezenet1_1", TESTS, [mode], batch_size=1, image_size=32, torch_xla=sys.executable)
    for test, bound in (("inference", 1e-4), ("step", 1e-3)):
        model = models.without_dropout(models.build("squeezenet1_1")).train(test != "inference")
        inputs = models.example("squeezenet1_1", 1, 32)
        eager, program = (request.program(test, each, model, inputs) for each in ("eager", mode))
        for _ in range(2):
            program.clear()
            program.run()
        eager.run()
        if test == "step":
            program.first_step_again()
        assert isinstance(program, Program)
        assert verify.relative_error(program.results(), eager.results()) < bound
