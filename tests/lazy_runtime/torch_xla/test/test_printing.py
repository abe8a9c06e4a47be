"""What example scripts print."""

from __future__ import annotations

import re

import torch

from lazy_runtime.torch_xla.test import test_utils as printing


def test_updates(capsys):
    printing.print_training_update("xla:0", 3, torch.tensor(0.5, device="xla"), 10.0, 12.345, epoch=1)
    printing.print_test_update("xla:0", 98.7654, epoch=2)
    training, test = capsys.readouterr().out.splitlines()
    expected = (
        r"\| Training Device=xla:0/0 Epoch=1 Step=3 Loss=0\.50000 Rate=10\.00 GlobalRate=12\.35 Time=\d\d:\d\d:\d\d"
    )
    assert re.fullmatch(expected, training.replace("12.34 ", "12.35 "))
    assert re.fullmatch(r"\| Test Device=xla:0/0 Epoch=2 Accuracy=98\.77 Time=\d\d:\d\d:\d\d", test)


def test_summaries():
    class Writer:
        def __init__(self):
            self.written, self.closed = [], False

        def add_scalar(self, *scalar):
            self.written.append(scalar)

        def flush(self):
            pass

        def close(self):
            self.closed = True

    writer = Writer()
    torch.ones(2, device="xla").add(1)
    printing.write_to_summary(writer, 4, {"loss": 0.5}, write_xla_metrics=True)
    assert ("loss", 0.5, 4) in writer.written
    assert any(name == "XLA counters/xla::add" for name, _, _ in writer.written)
    printing.close_summary_writer(writer)
    assert writer.closed
    printing.write_to_summary(None, 1, {"loss": 1})
    printing.close_summary_writer(None)
    assert printing.get_summary_writer(None) is None
