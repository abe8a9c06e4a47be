import gzip
import json
import socket
import threading
import time

import pytest
import torch

from lazy_runtime.common import metrics
from lazy_runtime.torch_xla.debug import profiler as xp


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
    xp.trace(f"localhost:{port}", str(tmp_path), duration_ms=300)
    done.set()
    thread.join()
    del server
    assert "in_the_background" in names(tmp_path)


def test_a_failing_step_is_not_executed():
    with pytest.raises(KeyError), xp.StepTrace("a_step"):
        raise KeyError
    assert metrics.value("MarkStep") == 0


def test_other_processes_are_refused():
    with pytest.raises(ValueError, match="only this process can be captured"):
        xp.trace("elsewhere:9012", "nowhere")
