"""Memory of attention over long sequences."""

from __future__ import annotations

import pytest

from benchmarks.__main__ import main
from benchmarks.measurements import longsequence
from benchmarks.measurements.longsequence import Peak


def test_every_form_in_every_mode(monkeypatch):
    monkeypatch.setattr(longsequence, "TOKENS", 64)
    monkeypatch.setattr(longsequence, "SHORT", 32)
    for form in longsequence.FORMS:
        for mode in longsequence.MODES:
            for backward in (False, True):
                peak = longsequence.here(form, mode, backward, "float32")
                assert 0 < peak.short <= peak.long


def test_what_is_beyond_the_short_sequence_is_held_to_the_bound(monkeypatch, capsys):
    def call(function, form, mode, backward, dtype):
        return Peak(1 << 30, (3 << 30) + (backward and form == "mask"))

    monkeypatch.setattr(longsequence.fresh, "call", call)
    assert main(["longsequence", "--modes", "lazy", "--dtypes", "float32"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if "| lazy" in line]
    assert [("missed" in row) for row in rows] == [form == "mask" for form in longsequence.FORMS]


def test_what_is_not_finite_is_refused(monkeypatch):
    monkeypatch.setitem(longsequence.FORMS, "plain", {"scale": float("nan")})
    with pytest.raises(RuntimeError, match=r"attention \(plain, eager\) of 256 tokens is not finite"):
        longsequence.here("plain", "eager", False, "float32")
