"""Warnings that never end a program."""

from __future__ import annotations

import warnings

import pytest

from lazy_runtime import notices


def test_it_is_a_warning():
    with pytest.warns(RuntimeWarning, match="no such file"):
        notices.tell("no such file")


def test_a_filter_that_makes_errors_of_it_sends_it_to_the_log(caplog):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        notices.tell("no such file")
    assert [record.message for record in caplog.records] == ["no such file"]


def test_a_topic_is_told_once(monkeypatch, recwarn):
    monkeypatch.setattr(notices, "_told", set())
    warnings.simplefilter("always")
    for _ in range(2):
        notices.tell_once("a", "first")
        notices.tell_once("b", "second")
    assert [str(each.message) for each in recwarn] == ["first", "second"]
