import json
import platform

import pytest

from benchmarks import environment


def test_nothing_says_where_or_on_whose_machine(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/home/someone/dump --xla_cpu_use_thunk_runtime=false")
    found = environment.collect()
    assert found["flags"]["XLA_FLAGS"] == "--xla_dump_to=dump --xla_cpu_use_thunk_runtime=false"
    text = json.dumps(found)
    assert platform.node() not in text
    assert "/home" not in text


def test_versions_and_machine():
    found = environment.collect()
    assert found["versions"]["torch"].startswith("2.")
    assert found["machine"]["cores"] >= 1
    assert found["machine"]["memory_gib"] > 0


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("/usr/lib/x.so: cannot open", "x.so: cannot open"),
        ("a/b and 3/4", "a/b and 3/4"),
        ("PATHS=/opt/a:/opt/b", "PATHS=a:b"),
        ("see https://example.org/a/b", "see https://example.org/a/b"),
        ("in ~/code/model.py:12", "in model.py:12"),
    ],
)
def test_paths_are_cut(text, cut):
    assert environment.without_paths(text) == cut


def test_errors_in_one_line():
    assert environment.one_line(ValueError("\nbad\nworse")) == "ValueError: bad"
    assert environment.one_line(KeyError()) == "KeyError"
    wrapped = RuntimeError("backend='openxla' raised:\nNotImplementedError: no such operator\n\nmore")
    assert environment.one_line(wrapped) == (
        "RuntimeError: backend='openxla' raised: NotImplementedError: no such operator"
    )
