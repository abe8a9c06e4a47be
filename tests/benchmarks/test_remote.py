import time

import pytest
import torch

from benchmarks import models, remote, verify
from benchmarks.modes import MODES
from benchmarks.modes import Program as LocalProgram
from benchmarks.remote import Program, RemoteError, Server
from benchmarks.training_step import Step
from benchmarks.worker import Request

REQUEST = Request("squeezenet1_1", ("inference", "step"), ("eager", "lazy"), batch_size=1, image_size=32)._asdict()


@pytest.fixture(scope="module")
def server():
    with Server() as started:
        yield started


def _here(kind, mode, training):
    model = models.without_dropout(models.build("squeezenet1_1")).train(training)
    program = kind(MODES[mode], model, models.example("squeezenet1_1", 1, 32))
    program.run()
    return program.results()


def test_a_program_there_has_the_results_of_one_here(server):
    program = Program(server, REQUEST, "inference", "lazy")
    for _ in range(2):
        program.clear()
        program.run()
    assert program.taken_s is not None
    assert program.taken_s > 0
    assert verify.relative_error(program.results(), _here(LocalProgram, "eager", False)) < 1e-4


def test_steps_have_host_times_and_begin_again(server):
    program = Program(server, {**REQUEST, "loop": 2}, "step", "lazy")
    assert len(program.round()) == 2
    program.first_step_again()
    assert verify.relative_error(program.results(), _here(Step, "eager", True)) < 1e-3


def test_a_planted_slowdown_is_as_long_as_it_is_said_to_be(server, monkeypatch):
    asked = []
    monkeypatch.setattr(
        server, "ask", lambda do, **arguments: asked.append((do, arguments)) or {"seconds": 1, "host_s": ()}
    )
    Program(server, REQUEST, "inference", "eager", times=1.15).run()
    assert asked[-1] == ("run", {"name": "inference eager", "times": 1.15, "least_s": 0.0})


def test_a_round_of_many_in_a_row(server):
    program = Program(server, REQUEST, "inference", "eager", least_s=0.2)
    start = time.perf_counter()
    program.round()
    together = time.perf_counter() - start
    assert together > 0.2
    assert program.taken_s is not None
    assert program.taken_s < together / 2  # the mean of several
    program.rehearse()  # does nothing: each round begins with one that is not timed
    steps = Program(server, {**REQUEST, "loop": 2}, "step", "lazy", least_s=0.05)
    assert len(steps.round()) % 2 == 0


def test_what_fails_there_fails_here_and_the_process_goes_on(server):
    with pytest.raises(RemoteError, match="ValueError: this mode compiles the function of a whole step"):
        Program(server, REQUEST, "inference", "openxla_step")
    assert server.ask("hello")["versions"]["torch"] == torch.__version__


def test_it_imports_the_package_of_its_checkout(server):
    assert server.ask("hello")["package"] == str(remote.ROOT)


def test_a_process_that_ends_says_how(tmp_path):
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "served.py").write_text("raise SystemExit('no such\\ncheckout')")
    server = Server(tree=tmp_path)
    with pytest.raises(RemoteError, match="its process ended with exit code 1: checkout"):
        server.ask("hello")
    server.close()
    server.close()
