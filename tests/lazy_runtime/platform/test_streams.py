"""Streams and events of `torch.xla`: names of one order of execution."""

from __future__ import annotations

import pytest
import torch

import lazy_runtime
from lazy_runtime.common import metrics
from lazy_runtime.platform import streams
from lazy_runtime.platform.streams import Event, Stream


def test_the_default_stream_is_current_where_none_was_chosen():
    assert streams.current_stream() is streams.default_stream() is streams.default_stream("xla:0")


def test_the_latest_choice_is_current_until_it_ends():
    outer, inner = Stream(), Stream(device="xla:0", priority=-1)
    with streams.stream(outer):
        with streams.stream(inner):
            assert streams.current_stream("xla:0") is inner
        assert streams.current_stream() is outer
        assert streams.default_stream() is not outer
    assert streams.current_stream() is streams.default_stream()


def test_no_choice_leaves_the_current_one():
    outer = Stream()
    with streams.stream(outer), streams.stream(None):
        assert streams.current_stream() is outer


def test_a_choice_ends_with_an_error():
    def fail():
        with streams.stream(Stream()):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert streams.current_stream() is streams.default_stream()


def test_an_event_is_recorded_as_it_is_given_or_made():
    event = Event(enable_timing=True)
    assert Stream().record_event(event) is event
    assert isinstance(Stream().record_event(), Event)
    assert event.record(Stream()) is event


def test_nothing_is_executed_to_wait_for_a_stream_or_an_event():
    x = torch.ones(3, device="xla") + 1
    stream, event = Stream(), Event()
    stream.wait_stream(streams.current_stream())
    stream.wait_event(event.record())
    event.wait(stream)
    stream.synchronize()
    event.synchronize()
    assert stream.query()
    assert event.query()
    assert metrics.value("ExecuteComputation") == 0
    assert x.tolist() == [2, 2, 2]


def test_what_is_recorded_in_several_streams_is_one_program():
    x = torch.ones(3, device="xla")
    lazy_runtime.sync()
    metrics.clear()
    with torch.xla.stream(torch.xla.Stream()):
        y = x + 1
        event = torch.xla.current_stream().record_event()
    torch.xla.current_stream().wait_event(event)
    z = y * 2
    lazy_runtime.sync()
    assert metrics.value("ExecuteComputation") == 1
    assert z.tolist() == [4, 4, 4]
