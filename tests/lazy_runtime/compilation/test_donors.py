import torch

import lazy_runtime
from lazy_runtime.common import metrics
from lazy_runtime.compilation import donors
from lazy_runtime.tensor.xla_tensor import unwrap


def handle(tensor):
    return unwrap(tensor).handle


def test_what_was_given_away_is_donated_once():
    x = torch.ones(5).to("xla")
    lazy_runtime.sync()
    donors.give(handle(x), True)
    assert donors.has_given(handle(x))
    assert donors.is_given(handle(x).value)
    y = x * 3
    lazy_runtime.sync(wait=True)
    assert handle(x).value.array.is_deleted()
    assert y.tolist() == [3] * 5
    donors.give(handle(y), True)
    donors.give(handle(y), False)
    assert not donors.is_given(handle(y).value)


def test_nothing_else_is_taken():
    x = torch.ones(6).to("xla")
    before = metrics.snapshot()[1].get("InputOutputAliasCount")
    before = before.accumulator if before else 0
    with donors.only_given(True):
        x.mul_(3)
        lazy_runtime.sync()
    after = metrics.snapshot()[1]["InputOutputAliasCount"].accumulator
    assert after == before
    x.mul_(5)
    lazy_runtime.sync()
    assert metrics.snapshot()[1]["InputOutputAliasCount"].accumulator == after + 1
    assert x.tolist() == [15] * 6
