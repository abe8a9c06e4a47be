"""Host times of training steps."""

from __future__ import annotations

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.measurements import steptime

# torch's own, while Dynamo traces: it looks at `.grad` of any tensor, and at all there is of a class
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
]


def test_from_the_command_to_the_table(capsys, monkeypatch):
    case = steptime.Case(lambda: torch.nn.Linear(3, 2), lambda: [torch.randn(4, 3)], steptime._sgd)
    monkeypatch.setitem(steptime.CASES, "linear", case)
    assert main(["steptime", "--cases", "linear", "--repeat", "3"]) == 0
    printed = capsys.readouterr().out
    assert "### Host time of a training step" in printed
    for form in steptime.FORMS.values():
        assert f"| linear          | {form}" in printed


def test_the_ratio_is_judged():
    series = {"lazy": [10.0, 20.0, 10.0], "openxla_step": [1.0, 2.0, 9.0], "compile": [5.0, 20.0, 10.0]}
    assert steptime.rows("name", series) == [
        ["name", "recorded", 10.0, 10.0, 1.0, ""],
        ["name", "torch.compile(step)", 2.0, 1.0, 0.1, "met"],
        ["name", "lazy_runtime.compile(step)", 10.0, 5.0, 1.0, "missed"],
    ]


def test_a_step_that_is_two_executions_is_refused(monkeypatch):
    monkeypatch.setattr(steptime.Step, "_start", lambda self: None)
    with pytest.raises(RuntimeError, match="a step of the form lazy compiled, or was not one execution"):
        steptime.host_times(steptime.CASES["decoder2_sgd"], 1)
