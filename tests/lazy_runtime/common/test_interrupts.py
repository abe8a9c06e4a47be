"""Ctrl-C: where it waits, and that it is never lost."""

from __future__ import annotations

import gc
import signal
import sys
import threading

import pytest
import torch

import lazy_runtime
from lazy_runtime.common import interrupts
from lazy_runtime.compilation import compiler
from lazy_runtime.execution import execute


@pytest.fixture(autouse=True)
def interruptible():
    """Python's own handler: a test run in the background may have been started with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt():
    signal.raise_signal(signal.SIGINT)


def test_it_waits_for_the_end_of_the_block():
    done = []

    def work():
        with interrupts.deferred():
            with interrupts.deferred():
                interrupt()
                done.append(1)
            done.append(2)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == [1, 2]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with interrupts.deferred():
        pass


def test_it_is_raised_where_nothing_would_be_lost():
    done = []

    def work():
        with interrupts.deferred(), interrupts.deferred():
            interrupts.raise_caught()
            interrupt()
            done.append(1)
            interrupts.raise_caught()
            done.append(2)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_second_after_a_while_does_not_wait(monkeypatch):
    monkeypatch.setattr(interrupts, "_PATIENCE_S", -1.0)

    def work():
        with interrupts.deferred():
            interrupt()
            interrupt()
            pytest.fail("it waited")

    with pytest.raises(KeyboardInterrupt):
        work()


def test_the_users_handler_stays_and_is_called(monkeypatch):
    called = []
    before = signal.signal(signal.SIGINT, lambda *arguments: called.append(arguments[0]))
    try:
        with interrupts.deferred():
            interrupt()
            assert called == []
        assert called == [signal.SIGINT]
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with interrupts.deferred():
            interrupt()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_do_nothing():
    found = []

    def work():
        with interrupts.deferred():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]


def test_what_has_the_donated_buffers_keeps_its_results(monkeypatch):
    x = torch.ones(4, device="xla")
    lazy_runtime.sync()
    start = execute.compiler.Executable.start

    def interrupted(*arguments):
        found = start(*arguments)
        interrupt()  # the program has run, and nobody has its results yet
        return found

    monkeypatch.setattr(compiler.Executable, "start", interrupted)
    x += 1
    with pytest.raises(KeyboardInterrupt):
        lazy_runtime.sync()
    monkeypatch.undo()
    assert x.tolist() == [2.0] * 4


def test_a_program_that_was_compiled_meanwhile_is_kept(monkeypatch):
    x = torch.ones(5, device="xla")
    compile_ = compiler._compile

    def interrupted(*arguments):
        found = compile_(*arguments)
        interrupt()
        return found

    monkeypatch.setattr(compiler, "_compile", interrupted)
    y = (x + 3).cos()
    with pytest.raises(KeyboardInterrupt):
        lazy_runtime.sync()
    monkeypatch.setattr(compiler, "_compile", lambda *_: pytest.fail("it is compiled again"))
    torch.testing.assert_close(y.cpu(), torch.full((5,), 4.0).cos())


def test_one_in_a_callback_that_drops_it_comes_again(monkeypatch):
    """Python reports what is raised in callbacks of collections and in destructors, and goes on. Jax has one of the
    former, and an interrupt meets it often.
    """
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    interrupts.keep_lost.__wrapped__()

    def callback(phase, info):
        gc.callbacks.remove(callback)
        interrupt()

    gc.callbacks.append(callback)

    def collect_and_wait():
        gc.collect()
        threading.Event().wait(10)

    with pytest.raises(KeyboardInterrupt):
        collect_and_wait()


def test_other_exceptions_in_callbacks_go_to_the_hook_that_was_there(monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: seen.append(unraisable.exc_type))
    interrupts.keep_lost.__wrapped__()

    class Fails:
        def __del__(self):
            raise ValueError

    Fails()
    gc.collect()
    assert seen == [ValueError]
