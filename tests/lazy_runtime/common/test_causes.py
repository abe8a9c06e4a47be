"""What an execution is said to be caused by: of all files that lead to it, the outermost that is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from lazy_runtime.common import causes, source_locations
from lazy_runtime.common.source_locations import is_ours


@pytest.fixture
def module(monkeypatch, tmp_path):
    """Makes a module of this package's of a source; it lasts as long as the test."""
    monkeypatch.setattr(causes, "_called", dict(causes._called))
    monkeypatch.setattr(causes, "_running", dict(causes._running))
    monkeypatch.setattr(source_locations, "_ours", dict(source_locations._ours))

    def make(name, source):
        file = str(tmp_path / name)
        source_locations._ours[file] = True
        Path(file).write_text(source)
        names = {"causes": causes, "is_ours": source_locations.is_ours, "__file__": file}
        exec(compile(source, file, "exec"), names)
        return names

    return make


def test_without_a_known_caller_a_value_is_read():
    assert causes.current(is_ours).startswith("most likely user code")


def test_a_file_says_what_its_functions_cause(module):
    names = module("sync.py", 'causes.register(__file__, "a sync")\ndef sync(): return causes.current(is_ours)')
    assert names["sync"]() == "a sync"


def test_a_function_says_what_it_alone_causes(module):
    source = 'causes.register(__file__, "the end of a step", "end")\ndef end(): return causes.current(is_ours)\n'
    names = module("steps.py", source + "def other(): return causes.current(is_ours)")
    assert names["end"]() == "the end of a step"
    assert names["other"]().startswith("most likely user code")


def test_the_outermost_cause_counts(module):
    inner = module("inner.py", 'causes.register(__file__, "inner")\ndef call(): return causes.current(is_ours)')
    outer = module("outer.py", 'causes.register(__file__, "outer")\ndef call(function): return function()')
    assert outer["call"](inner["call"]) == "outer"


def test_what_is_running_counts_whoever_has_called_it(module):
    inner = module(
        "inner.py", 'causes.register_running(__file__, "compiling")\ndef call(): return causes.current(is_ours)'
    )
    outer = module("outer.py", 'causes.register(__file__, "outer")\ndef call(function): return function()')
    assert outer["call"](inner["call"]) == "compiling"


def test_the_users_code_ends_the_search(module):
    outer = module("outer.py", 'causes.register(__file__, "outer")\ndef call(function): return function()')
    assert outer["call"](lambda: causes.current(is_ours)).startswith("most likely user code")  # this file is a user's
