import threading

import pytest
import torch

import lazy_runtime
from lazy_runtime import debug
from lazy_runtime.torch_xla.core import xla_model as xm


def test_a_read_is_listed_with_its_line_and_code():
    x = torch.rand(8).to("xla")
    total = 0.0
    for _ in range(3):
        total += (x + 1).sum().item()
    (found,) = debug.syncs()
    assert found.count == found.executed == 3
    assert found.operators == 6
    assert found.seconds > 0
    assert found.line.file == __file__
    assert "(x + 1).sum().item()" in found.code
    assert str(found).startswith("unplanned sync at ")


def test_conditions_and_prints_are_told_apart(capsys):
    x = torch.rand(8).to("xla").sum()
    if x > 0:
        print(x)
    codes = {found.code for found in debug.syncs()}
    assert codes in ({"x > 0", "print(x)"}, {"if x > 0:", "print(x)"})
    assert "xla" in capsys.readouterr().out


def test_a_sync_is_no_unplanned_one():
    x = torch.rand(8).to("xla") + 1
    lazy_runtime.sync()
    lazy_runtime.sync(wait=True)
    assert debug.syncs() == []
    x.cpu()
    (found,) = debug.syncs()
    assert (found.executed, found.operators) == (0, 0)  # it had been started


def test_a_step_closure_is_there_to_read():
    x = torch.rand(8).to("xla")
    read = threading.Event()
    for run_async in (False, True):
        xm.add_step_closure(lambda total: (total.item(), read.set()), args=(x.sum(),), run_async=run_async)
        read.clear()
        lazy_runtime.sync()
        assert read.wait(20)
    assert debug.syncs() == []
    xm.add_step_closure(lambda: x.sum().item())  # this one computes
    lazy_runtime.sync()
    (found,) = debug.syncs()
    assert found.executed == 1
    x.tolist()
    assert len(debug.syncs()) == 2


def test_each_line_is_counted_as_long_as_nobody_forgets_it():
    from lazy_runtime.debug import unplanned_syncs

    x = torch.rand(8).to("xla")
    for _ in range(2):
        x.tolist()
    x.cpu()
    assert sorted(found.count for found in debug.syncs()) == [1, 2]
    unplanned_syncs.clear()
    assert debug.syncs() == []


def test_a_read_that_fails_is_not_counted():
    x = torch.zeros(2, dtype=torch.long).to("xla")
    with pytest.raises(IndexError):
        x[torch.tensor([7]).to("xla")].cpu()
    assert debug.syncs() == []
