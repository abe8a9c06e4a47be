"""`python -m benchmarks eager`."""

from __future__ import annotations

import pytest

from benchmarks import measure
from benchmarks.__main__ import main
from benchmarks.measurements import decoder_only, eager
from lazy_runtime.torch_xla import experimental


@pytest.fixture
def small(monkeypatch):
    config = decoder_only.Config(hidden=16, layers=1, heads=4, key_value_heads=2, intermediate=32, vocabulary=50)
    monkeypatch.setattr(decoder_only, "Config", lambda: config)
    monkeypatch.setattr(eager, "BLOCK", 2)


def test_a_small_model_from_the_command_to_the_table(small, capfd):
    assert main(["eager", "--models", "decoder-only", "--steps", "4"]) == 0
    printed = capfd.readouterr().out
    rows = [line.split("|")[1].strip() for line in printed.splitlines() if line.startswith("|")]
    assert rows[0] == "mode"
    assert tuple(rows[2:]) == eager.MODES
    assert not experimental.is_eager_mode()


def test_the_table_holds_shares_to_their_bounds():
    def rates(share):
        return eager.Rates(measure.Summary(10.0, 9.0, 11.0, 12.0), measure.Summary(share, share, share, share))

    found = {"tracing": rates(1.0), "eager": rates(0.44), "eager + compile": rates(0.98)}
    lines = eager.table("decoder-only", "tokens", found).splitlines()
    assert "tokens/s" in lines[2]
    assert ["missed" in line for line in lines[4:]] == [False, True, False]
    assert ["met" in line for line in lines[4:]] == [False, False, True]


def test_modes_that_compute_something_else_are_found(small, monkeypatch):
    step = eager.Trainer._step

    def wrong(self):
        return step(self) * (2 if self.mode == "eager" else 1)

    monkeypatch.setattr(eager.Trainer, "_step", wrong)
    with pytest.raises(RuntimeError, match="decoder-only: the losses of tracing, eager, eager \\+ compile differ"):
        eager.rates("decoder-only", 2)
