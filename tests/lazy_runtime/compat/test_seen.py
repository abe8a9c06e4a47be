"""What was seen with other versions."""

from __future__ import annotations

from lazy_runtime.compat import seen


def found(**changed):
    return {
        "python": "3.11.7",
        "torch": "2.13.0+cpu",
        "jax": "0.10.2",
        "commit": "abc",
        "passed": 3,
        "failed": 1,
        "skipped": 0,
        "failures": ["tests.one"],
        **changed,
    }


def test_the_same_versions_are_one_row(tmp_path, monkeypatch):
    monkeypatch.setattr(seen, "FILE", tmp_path / "seen.json")
    assert seen.table() == []
    for row in (found(), found(torch="2.9.0"), found(python="3.9.1"), found(passed=4, failed=0, failures=[])):
        seen.record(row)
    assert [(row["python"], row["torch"], row["passed"]) for row in seen.table()] == [
        ("3.9.1", "2.13.0+cpu", 3),
        ("3.11.7", "2.9.0", 3),
        ("3.11.7", "2.13.0+cpu", 4),
    ]
    assert seen.markdown()[-1] == "| 3.11.7 | 2.13.0+cpu | 0.10.2 | abc | 4 | 0 | 0 |"
