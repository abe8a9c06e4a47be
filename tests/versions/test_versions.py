"""The matrix of versions, and how one is tried."""

from __future__ import annotations

import pytest

from lazy_runtime.compat.rows import SUPPORTED
from tests.versions import environment
from tests.versions.matrix import MATRIX, SMOKE

#: Supported, and not to be had yet.
MISSING = {"torch": {"2.15"}, "jax": set()}


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_each_supported_version_is_tried(library):
    tried = {".".join(getattr(each, library).split(".")[:2]) for each in MATRIX}
    assert tried == set(SUPPORTED[library]) - MISSING[library]


def test_the_tests_are_there():
    assert [path for path in SMOKE if not (environment.ROOT / path).exists()] == []


def test_a_python_that_is_not_there():
    with pytest.raises(environment.MissingError, match=r"no python9\.9"):
        environment.interpreter("9.9")


def test_a_command_that_does_not_run_is_no_python(tmp_path, monkeypatch):
    command = tmp_path / "python9.9"
    command.write_text("#!/bin/sh\nexit 127\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(environment.MissingError, match=r"no python9\.9"):
        environment.interpreter("9.9")
    command.write_text("#!/bin/sh\nexit 0\n")
    assert environment.interpreter("9.9") == str(command)


def test_a_report_is_counted(tmp_path):
    (tmp_path / "report.xml").write_text(
        '<testsuites><testsuite><testcase classname="a" name="good"/><testcase classname="a" name="bad"><failure/>'
        '</testcase><testcase classname="a" name="left"><skipped/></testcase></testsuite></testsuites>'
    )
    assert environment._counts(tmp_path / "report.xml") == {
        "passed": 1,
        "failed": 1,
        "skipped": 1,
        "failures": ["a.bad"],
    }
