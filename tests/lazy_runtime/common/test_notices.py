"""Warnings that never end a program."""

from __future__ import annotations

import os
import warnings

import pytest
import torch

import lazy_runtime
from lazy_runtime.common import notices, output
from lazy_runtime.debug import graph_saver, metrics_saver


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


def test_a_report_that_cannot_be_written_is_told_once(monkeypatch, tmp_path, recwarn):
    """Of each variable that names a file."""
    monkeypatch.setattr(notices, "_told", set())
    warnings.simplefilter("always")
    x = torch.ones(2, device="xla")
    for name in ("PT_XLA_DEBUG_FILE", "XLA_METRICS_FILE", "XLA_SAVE_TENSORS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "absent" / "file"))
        for _ in range(2):
            output.write("a line")
            x += 1
            lazy_runtime.sync()
            graph_saver._append(os.environ.get("XLA_SAVE_TENSORS_FILE", str(tmp_path / "file")), "graph")
    told = [str(each.message) for each in recwarn]
    assert len(told) == 3
    for name, message in zip(("PT_XLA_DEBUG_FILE", "XLA_METRICS_FILE", "XLA_SAVE_TENSORS_FILE"), told, strict=True):
        assert message.startswith(f"{name} names '{tmp_path}/absent/file', which cannot be written (No such file")
    assert x.tolist() == [7.0, 7.0]
    with pytest.raises(FileNotFoundError):
        metrics_saver.save_metrics(str(tmp_path / "absent" / "file"))  # the caller has named it
