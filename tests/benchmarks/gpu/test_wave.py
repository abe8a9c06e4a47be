"""Waves of processes that say what real ones do, and compute nothing."""

import itertools
import os
import signal
import time

import pytest

from benchmarks.gpu import wave
from benchmarks.gpu.precision import DeviceRequest

LIMITS = wave.Limits(prepare_s=60.0, step_s=60.0, timing_s=0.1, timed_s=60.0, total_s=120.0)


def _row(request, mode, **more):
    row = {"model": request.model, "test": request.tests[0], "mode": mode, "checks": [], "failure": None}
    return "row", {**row, **more}


def _works(request, connection, log, timing_s):
    """Hangs or dies at the mode of that name, where the model is the one that does."""
    os.setsid()
    for mode in request.modes:
        connection.send(("step", f"{request.model}: first call of {mode}"))
        if mode == "cuda_graphs" and request.model == "vgg16":
            time.sleep(600)
        if mode == "cuda_graphs" and request.model == "alexnet":
            with open(log, "w") as file:
                file.write("out of memory")
            os.kill(os.getpid(), signal.SIGABRT)
    ready = time.monotonic()
    connection.send(("ready", request.model))
    connection.recv()
    told = time.monotonic()
    for mode in request.modes:
        connection.send(_row(request, mode, ready=ready, told=told, ended=time.monotonic()))


def _fails_as_a_whole(request, connection, log, timing_s):
    os.setsid()
    for mode in request.modes:
        connection.send(_row(request, mode, failure="ModuleNotFoundError: diffusers"))


def _hangs_when_timed(request, connection, log, timing_s):
    os.setsid()
    connection.send(("ready", request.model))
    connection.recv()
    connection.send(("alive", f"{request.model}: timing cuda"))
    time.sleep(600)


def _request(model, modes=("cuda", "cuda_graphs", "openxla")):
    return DeviceRequest(model, ["inference"], modes, together=True)


def _run(*requests, limits=LIMITS, target=_works):
    rows, logs = [], []
    outcome = wave.run(requests, limits, rows.append, lambda *logged: logs.append(logged), target)
    return rows, logs, outcome


def test_models_are_timed_in_turn_when_all_are_ready():
    rows, logs, outcome = _run(_request("resnet18"), _request("resnet50"))
    assert [(row["model"], row["mode"]) for row in rows] == [
        (model, mode) for model in ("resnet18", "resnet50") for mode in ("cuda", "cuda_graphs", "openxla")
    ]
    assert max(row["ready"] for row in rows) <= min(row["told"] for row in rows)
    assert all(earlier["ended"] <= later["ended"] for earlier, later in itertools.pairwise(rows))
    assert (outcome.timed, outcome.again, logs) == (2, [], [])


def test_a_mode_that_dies_costs_its_own_row_and_the_rest_is_tried_again():
    rows, logs, outcome = _run(_request("alexnet"), _request("resnet18"))
    assert [(row["model"], row["mode"]) for row in rows if row["failure"] is None] == [
        ("resnet18", mode) for mode in ("cuda", "cuda_graphs", "openxla")
    ]
    (failed,) = (row for row in rows if row["failure"] is not None)
    assert failed["mode"] == "cuda_graphs"
    assert failed["failure"] == "its process died, at: alexnet: first call of cuda_graphs"
    assert logs == [("alexnet inference tf32", "out of memory")]
    assert outcome.again == [_request("alexnet", ["cuda", "openxla"])]
    again, _, last = _run(*outcome.again)
    assert [(row["mode"], row["failure"]) for row in again] == [("cuda", None), ("openxla", None)]
    assert last.again == []


def test_a_mode_that_hangs_costs_its_own_row():
    rows, _, outcome = _run(_request("vgg16"), limits=LIMITS._replace(step_s=8.0))
    assert [(row["mode"], row["failure"]) for row in rows] == [
        ("cuda_graphs", "no progress in 8 s, at: vgg16: first call of cuda_graphs")
    ]
    assert outcome.again == [_request("vgg16", ["cuda", "openxla"])]


def test_one_that_is_slow_is_given_up():
    rows, _, outcome = _run(_request("vgg16"), limits=LIMITS._replace(prepare_s=8.0))
    assert {row["mode"] for row in rows} == {"cuda", "cuda_graphs", "openxla"}
    assert all(row["failure"].startswith("not ready after 8 s") for row in rows)
    assert (outcome.timed, outcome.again) == (0, [])


def test_a_model_that_fails_as_a_whole_has_its_own_reason():
    rows, _, outcome = _run(_request("unet"), target=_fails_as_a_whole)
    assert [row["failure"] for row in rows] == ["ModuleNotFoundError: diffusers"] * 3
    assert outcome.timed == 0


@pytest.mark.parametrize(("changed", "why"), [({"timed_s": 1.0}, "not timed in 1 s"), ({"step_s": 8.0}, "no progress")])
def test_one_that_hangs_while_timed_is_ended(changed, why):
    rows, _, outcome = _run(_request("vgg16"), limits=LIMITS._replace(**changed), target=_hangs_when_timed)
    assert all(row["failure"].startswith(why) for row in rows)
    assert len(rows) + sum(len(each.modes) for each in outcome.again) == 3


def test_an_interrupt_ends_all_processes():
    kept = []

    def keep(row):
        kept.append(row)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wave.run([_request("resnet18"), _request("vgg16", ["cuda"])], LIMITS, keep, lambda *logged: None, _works)
    assert len(kept) == 1
