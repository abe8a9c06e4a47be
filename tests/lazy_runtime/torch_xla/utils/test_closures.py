import threading

import pytest

from lazy_runtime.torch_xla.utils import closures


class Now(closures.ClosureHandler):
    def run(self, closure):
        closure()


def test_in_order():
    done = []
    Now().run_all([lambda n=n: done.append(n) for n in range(3)])
    assert done == [0, 1, 2]
    with pytest.raises(TypeError, match="abstract"):
        closures.ClosureHandler()  # type: ignore[abstract]


def test_on_a_thread(monkeypatch):
    monkeypatch.setattr(closures, "_IDLE_S", 0.05)
    handler, done, last = closures.AsyncClosureHandler(), [], threading.Event()
    handler.start_event_loop()
    handler.run_all([lambda n=n: done.append((n, threading.current_thread().name)) for n in range(3)])
    handler.run(last.set)
    assert last.wait(20)
    assert done == [(n, "xla closures") for n in range(3)]


def test_waits_where_the_queue_is_full(monkeypatch):
    monkeypatch.setattr(closures, "_IDLE_S", 0.05)
    monkeypatch.setenv("XLA_MAX_ASYNC_QUEUE", "1")
    handler, go, done, last = closures.AsyncClosureHandler(), threading.Event(), [], threading.Event()
    handler.run(go.wait)
    caller = threading.Thread(
        target=lambda: handler.run_all([lambda n=n: done.append(n) for n in range(3)] + [last.set])
    )
    caller.start()
    assert not done
    go.set()
    caller.join(20)
    assert last.wait(20)
    assert done == [0, 1, 2]


def test_a_failure_is_told_to_the_next_caller(monkeypatch):
    monkeypatch.setattr(closures, "_IDLE_S", 0.05)
    handler, done = closures.AsyncClosureHandler(), threading.Event()

    def fail():
        raise ZeroDivisionError("in the closure")

    handler.run(fail)
    thread = handler._thread
    if thread is not None:
        thread.join(20)
    with pytest.raises(RuntimeError, match="has failed") as raised:
        handler.run(done.set)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    handler.run(done.set)
    assert done.wait(20)
