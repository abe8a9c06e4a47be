"""One point, in its own process."""

from __future__ import annotations

import pytest

from benchmarks.measurements import growth_point
from benchmarks.measurements.growth_point import LimitError, Point


def test_every_mode(tmp_path):
    for mode in growth_point.MODES:
        point = growth_point.here("shapes", 1, mode, 60.0, str(tmp_path / "log"))
        assert point.run > 0
        assert 0 <= point.memory <= point.peak
        if mode == "eager":
            assert (point.trace, point.compile) == (None, None)
        else:
            assert point.trace is not None
            assert point.compile is not None


def test_the_limit_ends_the_process_and_says_where_it_was():
    with pytest.raises(LimitError, match=r"^in .+:\d+ \(.+\)$"):
        growth_point.measured("writes", 10_000, "openxla", 0.5)


def test_a_failure_is_none_of_the_limit():
    with pytest.raises(RuntimeError, match="KeyError: 'no_such_axis'") as error:
        growth_point.measured("no_such_axis", 1, "eager", 60.0)
    assert not isinstance(error.value, LimitError)


def test_the_innermost_frame_of_the_main_thread():
    others = 'Thread 0x1 (most recent call first):\n  File "/a/b/c.py", line 1 in other\n'
    main = (
        'Thread 0x2 (most recent call first):\n  File "/x/y/z.py", line 7 in inner\n  File "/x/y/z.py", line 9 in run\n'
    )
    assert growth_point._innermost(f"Timeout (0:00:01)!\n{others}\n{main}") == "in y/z.py:7 (inner)"
    assert growth_point._innermost("") == "at an unknown line"


def test_the_least_of_each_measure_counts():
    points = [Point(1.0, 5.0, 3.0, 7, 9), Point(2.0, 4.0, 2.0, 8, 10)]
    assert growth_point.least(points) == Point(1.0, 4.0, 2.0, 7, 9)
    eager = [point._replace(trace=None, compile=None) for point in points]
    assert growth_point.least(eager) == Point(None, None, 2.0, 7, 9)
