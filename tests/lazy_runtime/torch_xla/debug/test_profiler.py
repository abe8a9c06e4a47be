import gzip
import json
import socket
import threading
import time

import pytest
import torch

from lazy_runtime.common import metrics
from lazy_runtime.torch_xla.debug import profiler as xp
from lazy_runtime.torch_xla.distributed.parallel_loader import MpDeviceLoader


def names(directory):
    """Names of the events in the profile that was written there."""
    (path,) = directory.glob("plugins/profile/*/*.trace.json.gz")
    with gzip.open(path) as file:
        return {event.get("name") for event in json.load(file)["traceEvents"]}


def test_steps_and_parts_are_named_in_the_profile(tmp_path):
    x = torch.rand(8, 8).to("xla")
    xp.start_trace(str(tmp_path))
    for step in range(2):
        with xp.StepTrace("a_training_step", step_num=step), xp.Trace("its_forward"):
            y = x @ x
    xp.stop_trace()
    assert y.shape == (8, 8)
    assert metrics.value("MarkStep") == 2  # a step ends with a sync
    assert {"a_training_step", "its_forward"} <= names(tmp_path)


def test_a_decorated_function_is_named(tmp_path):
    @xp.trace_me("a_decorated_function")
    def function(x):
        return x + 1

    xp.start_trace(str(tmp_path))
    assert function(1) == 2
    xp.stop_trace()
    assert "a_decorated_function" in names(tmp_path)


def test_a_profile_from_now_on(tmp_path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    server = xp.start_server(port)
    done = threading.Event()

    def work():
        while not done.is_set():
            with xp.Trace("in_the_background"):
                time.sleep(0.01)

    thread = threading.Thread(target=work)
    thread.start()
    xp.trace(f"localhost:{port}", str(tmp_path / "waited"), duration_ms=300)
    before = set(threading.enumerate())
    xp.trace_detached(f"localhost:{port}", str(tmp_path / "detached"), duration_ms=300)
    for capturing in set(threading.enumerate()) - before:
        capturing.join()
    done.set()
    thread.join()
    del server
    for directory in ("waited", "detached"):
        assert "in_the_background" in names(tmp_path / directory)


def test_a_detached_profile_is_not_waited_for(monkeypatch):
    begun, may_end, given = threading.Event(), threading.Event(), []

    def trace(*args, **kwargs):
        given.append((args, kwargs))
        begun.set()
        assert may_end.wait(20)

    monkeypatch.setattr(xp, "trace", trace)
    before = set(threading.enumerate())
    xp.trace_detached("localhost:9012", "there", duration_ms=5)
    assert begun.wait(20)
    (capturing,) = set(threading.enumerate()) - before
    assert capturing.is_alive()
    may_end.set()
    capturing.join()
    assert given == [(("localhost:9012", "there"), {"duration_ms": 5})]


def test_a_failing_step_is_not_executed():
    with pytest.raises(KeyError), xp.StepTrace("a_step"):
        raise KeyError
    assert metrics.value("MarkStep") == 0


def test_other_processes_are_refused():
    with pytest.raises(ValueError, match="only this process can be captured"):
        xp.trace("elsewhere:9012", "nowhere")


def test_a_loader_leaves_the_step_to_its_trace():
    xp.set_tracer_marked_step(False)
    with pytest.raises(KeyError), xp.StepTrace("a_step"):
        raise KeyError
    assert not xp.get_tracer_marked_step()
    with xp.StepTrace("a_step"):
        pass
    assert xp.get_tracer_marked_step()
    batches = iter(MpDeviceLoader([torch.ones(1)] * 4, "xla"))
    steps = []
    for is_marked in (False, True):
        next(batches)
        assert not xp.get_tracer_marked_step()
        xp.set_tracer_marked_step(is_marked)
        metrics.clear()
        next(batches)
        steps.append(metrics.value("MarkStep"))
    assert steps == [1, 0]
    batches.close()
