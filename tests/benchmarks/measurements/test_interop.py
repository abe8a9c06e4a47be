"""Costs between torch and jax."""

from __future__ import annotations

from benchmarks.__main__ import main
from benchmarks.measurements import interop


def test_calls_and_a_model(capsys, monkeypatch):
    found = interop.call_times(1)
    assert found.keys() == interop.CALLS.keys()
    assert all(each.fastest > 0 for each in found.values())
    make, batch_size, _ = interop.BY_HAND["resnet50"]
    monkeypatch.setitem(interop.BY_HAND, "resnet50", (make, batch_size, 32))
    times = interop.model_times("resnet50", 1)  # which compares what they compute
    assert times.keys() == {"through function", "by hand"}


def test_tables_tell_what_is_met(monkeypatch, capsys):
    def summary(median):
        return interop.measure.summarize([median])

    calls = {"torch.neg(x)": summary(4.0), "jax.call(jnp.negative, x)": summary(10.0)}
    times = {"llama": {"through function": summary(10.0), "by hand": summary(10.0)}}
    monkeypatch.setattr(interop, "call_times", lambda graphs: calls)
    monkeypatch.setattr(interop, "model_times", lambda name, rounds: times["llama"])
    monkeypatch.setattr(interop, "loads", lambda rounds: [interop.Loaded(1.0, 0.4, 0.2, 0.35)])
    assert main(["interop", "--repeat", "1"]) == 0
    printed = capsys.readouterr().out
    assert "It takes 6.00 µs more than an operator; the bound is 5 (missed)." in printed
    assert printed.count("| met") == 3  # two models, and the package: 0.25 s
