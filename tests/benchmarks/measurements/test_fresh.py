"""Calls in processes of their own."""

from __future__ import annotations

import os

import pytest

from benchmarks.measurements import fresh


def test_results_come_back_and_variables_get_there():
    assert fresh.call(os.getpid) != os.getpid()
    assert fresh.call(os.getenv, "FRESH", environment={"FRESH": "yes"}) == "yes"
    assert "FRESH" not in os.environ


def test_a_failure_says_what_the_process_said():
    with pytest.raises(RuntimeError, match=r"(?s)listdir.*/nowhere at all.*FileNotFoundError"):
        fresh.call(os.listdir, "/nowhere at all")


def test_a_process_that_says_nothing_is_told_by_its_end():
    with pytest.raises(RuntimeError, match=r"abort\(\) failed: (?s:.*)its process died of SIGABRT$"):
        fresh.call(os.abort)
    with pytest.raises(RuntimeError, match=r"_exit\(3,\) failed: its process ended with status 3 and no message$"):
        fresh.call(os._exit, 3)
