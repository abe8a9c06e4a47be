"""Loops that stay in the program."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import lazy_runtime
from lazy_runtime.common import metrics
from lazy_runtime.functions import loops
from lazy_runtime.tensor.xla_tensor import unwrap
from lazy_runtime.torch_xla import experimental


def test_scan_carries_and_stacks():
    xs, weight = torch.randn(5, 3), torch.randn(3)
    on_xla, of_weight = xs.to("xla"), weight.to("xla")
    (total,), (running,) = loops.scan(
        lambda carry, x: ([carry + x * of_weight], [carry]), [torch.zeros(3, device="xla")], [on_xla]
    )
    expected = torch.cumsum(xs * weight, 0)
    torch.testing.assert_close(total.cpu(), expected[-1])
    torch.testing.assert_close(running.cpu(), torch.cat([torch.zeros(1, 3), expected[:-1]]))


def test_scan_backwards():
    xs = torch.arange(4.0)
    (last,), (seen,) = loops.scan(
        lambda carry, x: ([carry * 2 + x], [x - carry]), [torch.zeros((), device="xla")], [xs.to("xla")], reverse=True
    )
    carry, expected = torch.tensor(0.0), []
    for x in reversed(xs):
        expected.insert(0, x - carry)
        carry = carry * 2 + x
    torch.testing.assert_close(last.cpu(), carry)
    torch.testing.assert_close(seen.cpu(), torch.stack(expected))


def test_scan_of_no_element():
    init = torch.ones(2, device="xla")
    (last,), (made,) = loops.scan(lambda c, x: ([c + x], [x]), [init], [torch.zeros(0, 2, device="xla")])
    assert last.tolist() == [1.0, 1.0]
    assert made.shape == (0, 2)


def test_each_turn_has_random_numbers_of_its_own():
    xs = torch.zeros(6, device="xla")
    torch.manual_seed(0)
    _, (first,) = loops.scan(lambda x: ([], [torch.rand(4, device="xla") + x]), [], [xs])
    torch.manual_seed(0)
    _, (same,) = loops.scan(lambda x: ([], [torch.rand(4, device="xla") + x]), [], [xs])
    _, (other,) = loops.scan(lambda x: ([], [torch.rand(4, device="xla") + x]), [], [xs])
    assert len({*first.flatten().tolist(), *other.flatten().tolist()}) == 48
    torch.testing.assert_close(first.cpu(), same.cpu(), rtol=0, atol=0)


def test_while_loop_depends_on_data():
    limit = torch.tensor(100.0, device="xla")
    number, value = loops.while_loop(
        lambda number, value: value < limit,
        lambda number, value: [number + 1, value * 3],
        [torch.tensor(0, device="xla"), torch.tensor(1.0, device="xla")],
    )
    before = metrics.value("ExecuteComputation")
    assert (number.item(), value.item()) == (5, 243.0)
    assert metrics.value("ExecuteComputation") <= before + 1  # nobody read the condition


def test_what_a_turn_checks_is_raised():
    table, numbers = torch.arange(3.0, device="xla"), torch.tensor([0, 2, 7], device="xla")
    _, (found,) = loops.scan(lambda n: ([], [table[n.reshape(1)]]), [], [numbers])
    with pytest.raises(IndexError, match=r"out of (bounds|range)"):
        found.cpu()


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (lambda c, x: ([c.add_(x)], []), "in-place operation of the function of scan writes to its argument 0"),
        (lambda c, x: ([c.double()], []), r"begins as \['torch.float32 \[2\]'\].*gives \['torch.float64 \[2\]'\]"),
        (lambda c, x: ([c[:1]], []), r"torch.float32 \[1\]"),
        (lambda c, x: ([1.0], []), "returns 1.0, where tensors are taken"),
    ],
)
def test_refusals(body, error):
    with pytest.raises((RuntimeError, TypeError), match=error):
        loops.scan(body, [torch.zeros(2, device="xla")], [torch.zeros(3, 2, device="xla")])


def test_reading_is_refused():
    with pytest.raises(RuntimeError, match=r"the function of scan reads the value of a tensor \(`.item\(\)`"):
        loops.scan(lambda x: ([], [x + x.item()]), [], [torch.ones(3, device="xla")])


def test_writing_outside_is_refused():
    outside = torch.zeros(2, device="xla")
    with pytest.raises(RuntimeError, match=r"writes to a tensor from outside of it"):
        loops.scan(
            lambda c, x: ([c + outside.add_(x)], []), [torch.zeros(2, device="xla")], [torch.ones(3, 2).to("xla")]
        )


def test_the_same_loop_compiles_once_and_keeps_no_tensor():
    def run():
        weight = torch.randn(3, device="xla")
        kept = weakref.ref(unwrap(weight).handle)
        loops.scan(
            lambda c, x: ([c + x * weight], []), [torch.zeros(3, device="xla")], [torch.ones(4, 3, device="xla")]
        )
        lazy_runtime.sync()
        return kept

    run()
    before = metrics.value("UncachedCompile")
    kept = run()
    gc.collect()
    assert metrics.value("UncachedCompile") == before
    assert kept() is None


def test_in_eager_mode():
    with experimental.eager_mode_context(True):
        (total,), _ = loops.scan(
            lambda c, x: ([c + x], []), [torch.zeros(3, device="xla")], [torch.ones(4, 3, device="xla")]
        )
        assert total.tolist() == [4.0] * 3


def test_what_is_pending_outside_is_computed_once():
    noise = torch.rand(3, device="xla")  # pending
    _, (made,) = loops.scan(lambda x: ([], [x + noise]), [], [torch.zeros(4, 3, device="xla")])
    assert torch.equal(made.cpu(), noise.cpu().expand(4, 3))
