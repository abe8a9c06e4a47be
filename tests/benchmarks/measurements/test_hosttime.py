"""Host times of calls."""

from __future__ import annotations

from benchmarks.__main__ import main
from benchmarks.measurements import hosttime


def test_from_the_command_to_the_table(capsys):
    assert main(["hosttime", "--models", "resnet18", "--repeat", "1"]) == 0
    printed = capsys.readouterr().out
    assert "### An operator recorded lazily" in printed
    for what in hosttime.RECORDED:
        assert f"| {what}" in printed
    assert "### Host time of resnet18 on 1 image of 32x32" in printed
    for what in hosttime.WHAT.values():
        assert f"| {what}, following" in printed
        assert f"| {what}, first" in printed


def test_the_bound_is_scaled_by_the_machine():
    def times(milliseconds: float) -> hosttime.HostTimes:
        summary = hosttime.measure.summarize([milliseconds])
        return hosttime.HostTimes(summary, summary)

    found = {"openxla": times(0.4), "lazy": times(9.0)}
    lines = hosttime.table("mnasnet1_0", found, 2 * hosttime.REFERENCE_ADD).splitlines()
    bound, _, scaled, _, _ = [cell.strip() for cell in lines[4].split("|")[5:10]]
    assert (bound, scaled) == ("0.3", "0.6")
    assert lines[4].count("missed") == lines[4].count("met") == 1
    assert "missed" not in next(line for line in lines if "lazy" in line)  # which has no bound there


def test_the_bound_of_a_recorded_operator_is_scaled_too():
    found = {"x + y": hosttime.measure.summarize([6.0])}
    row = hosttime.recorded_table(found, 2 * hosttime.REFERENCE_ADD).splitlines()[4]
    assert [cell.strip() for cell in row.split("|")[5:9]] == ["4", "missed", "8", "met"]
