"""`experimental.scan`, against a loop in Python on the CPU."""

from __future__ import annotations

import pytest
import torch
from functorch.compile import default_partition, min_cut_rematerialization_partition

import lazy_runtime
from lazy_runtime.common import metrics
from lazy_runtime.torch_xla import _XLAC
from lazy_runtime.torch_xla.core import xla_builder as xb
from lazy_runtime.torch_xla.experimental import scan as module
from lazy_runtime.torch_xla.experimental.scan import scan


def looped(fn, init, xs):
    carry, ys = init, []
    for number in range(len(next(iter(xs.values())))):
        carry, y = fn(carry, {name: x[number] for name, x in xs.items()})
        ys.append(y)
    return carry, torch.stack(ys)


def step(carry, x):
    hidden = torch.tanh(carry["h"] @ carry["w"] + x["a"] * x["b"])
    return {**carry, "h": hidden}, hidden.sin()


@pytest.mark.parametrize("partition", [default_partition, min_cut_rematerialization_partition])
@pytest.mark.parametrize("pure", [False, True])
def test_values_and_gradients(partition, pure):
    torch.manual_seed(0)
    init = {"h": torch.randn(3, 4), "w": torch.randn(4, 4)}
    xs = {"a": torch.randn(5, 3, 4), "b": torch.randn(5, 4)}
    mine = [{k: v.to("xla").requires_grad_() for k, v in tree.items()} for tree in (init, xs)]
    theirs = [{k: v.clone().requires_grad_() for k, v in tree.items()} for tree in (init, xs)]
    carry, ys = scan(step, *mine, partition_fn=partition, is_fn_pure=pure)
    expected_carry, expected_ys = looped(step, *theirs)
    torch.testing.assert_close(ys.cpu(), expected_ys)
    torch.testing.assert_close(carry["h"].cpu(), expected_carry["h"])
    (carry["h"].sum() + ys.pow(2).sum()).backward()
    (expected_carry["h"].sum() + expected_ys.pow(2).sum()).backward()
    for tree, expected in zip(mine, theirs, strict=True):
        for name, tensor in tree.items():
            torch.testing.assert_close(tensor.grad.cpu(), expected[name].grad, rtol=1e-4, atol=1e-5)


def test_it_is_one_loop_of_the_program():
    carry, _ = scan(lambda c, x: (c + x, None), torch.zeros(3, device="xla"), torch.ones(50, 3, device="xla"))
    text = _XLAC._get_xla_tensors_hlo([carry])
    assert "while(" in text
    assert carry.tolist() == [50.0] * 3


def test_none_and_integers_and_some_gradients():
    def fn(carry, x):
        count, total = carry
        return (count + 1, total + x), {"none": None, "x": x * 2, "nothing": ()}

    xs = torch.randn(4, 2)
    init = torch.tensor(0, device="xla"), torch.zeros(2, device="xla")
    (count, total), ys = scan(fn, init, xs.to("xla"))
    assert count.item() == 4
    assert (ys["none"], ys["nothing"]) == (None, ())
    torch.testing.assert_close(total.cpu(), xs.sum(0))
    given = xs.to("xla").requires_grad_()
    (_, total), ys = scan(fn, init, given)
    ys["x"].sum().backward()
    torch.testing.assert_close(given.grad.cpu(), torch.full((4, 2), 2.0))


def test_pure_functions_are_traced_once():
    calls = []

    def fn(carry, x):
        calls.append(1)
        return carry * x, carry

    init, xs = torch.ones(2, device="xla"), torch.ones(3, 2, device="xla")
    for _ in range(3):
        scan(fn, init, xs, is_fn_pure=True)
    once = len(calls)
    scan(fn, init, xs)
    assert len(calls) == 2 * once
    assert len(module._SCAN_COMPUTATION_CACHE[fn]) == 1


def test_a_step_compiles_once():
    weight = torch.randn(3, device="xla", requires_grad=True)

    def train():
        weight.grad = None
        carry, _ = scan(
            lambda c, x: ({**c, "t": c["t"] + (c["w"] * x).sum()}, None),
            {"w": weight, "t": torch.zeros((), device="xla")},
            torch.randn(4, 3, device="xla"),
        )
        carry["t"].backward()
        lazy_runtime.sync()

    lazy_runtime.sync()
    train()
    before = metrics.value("UncachedCompile")
    train()
    assert metrics.value("UncachedCompile") == before


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ((1, torch.ones(2), torch.ones(3, 2)), ValueError, "fn must be callable, got 1"),
        ((step, torch.ones(2), (torch.ones(3), torch.ones(2))), ValueError, "one first size, got 2, 3"),
        ((step, torch.ones(2), ()), ValueError, "no tensor at all"),
    ],
)
def test_refusals(arguments, error, match):
    with pytest.raises(error, match=match):
        scan(*arguments)


def test_writes_are_refused():
    outside = torch.zeros(2, device="xla")
    init, xs = torch.zeros(2, device="xla"), torch.zeros(3, 2, device="xla")
    with pytest.raises(RuntimeError, match="in-place operation"):
        scan(lambda c, x: (c.add_(x), None), init, xs)
    with pytest.raises(RuntimeError, match="in-place operation"):
        scan(lambda c, x: (c + x.add_(1), None), init, xs)
    with pytest.raises(AssertionError, match="FakeTensor"):
        scan(lambda c, x: (c + outside.add_(1), None), init, xs)


def test_parts_for_one_element():
    def fn(carry, x):
        made = carry @ x
        return made, made

    init = torch.randn(2, 2, device="xla", requires_grad=True)
    xs = torch.randn(3, 2, 2, device="xla", requires_grad=True)
    forward, alias_input, backward = module.value_and_grad_partitioned(fn, init, xs)
    carry, (y, kept) = forward(init, xs[0])
    needed = alias_input(kept, xs[0])
    ones = torch.ones_like(carry)
    grad_carry, grad_x = backward(ones, (ones, needed))
    torch.testing.assert_close(y.cpu(), (init @ xs[0]).cpu())
    torch.testing.assert_close(grad_carry.cpu(), (2 * ones @ xs[0].T).cpu())
    torch.testing.assert_close(grad_x.cpu(), (init.T @ (2 * ones)).cpu())
    whole = alias_input([each.unsqueeze(0) for each in kept], xs)
    assert any(each is xs for each in whole)  # elements are not copied


def test_trees_without_none():
    leaves, unflatten = module.tree_flatten_none(((1, 2), (None, 3), None))
    assert list(leaves) == [1, 2, 3]
    assert unflatten("abc") == (("a", "b"), (None, "c"), None)
    assert module.split([1, 2, 3, 4], 1, 2) == [[1], [2, 3], [4]]


def test_elements_of_the_builder():
    xs = torch.arange(6.0, device="xla").reshape(3, 2)
    builder = module.Builder("test")
    number = builder.add_param(xs)
    index = builder.add_param(torch.tensor(1, device="xla", dtype=torch.int32))
    assert (number, index, builder.num_params()) == (0, 1, 2)
    of_xs, of_index = builder.params()
    element = module.dynamic_slice(of_xs, of_index)
    changed = module.dynamic_update_slice(of_xs, element * element, of_index)
    computation = changed.build("test")
    (found,) = xb.user_computation("test", builder.param_tensors(), computation)
    assert found.tolist() == [[0.0, 1.0], [4.0, 9.0], [4.0, 5.0]]


@pytest.mark.parametrize("with_ys", [True, False])
def test_the_loop_of_given_parts(with_ys):
    """The product of a carry with each element, and its hand-written backward pass."""
    needed_of = []

    def forward(carry, x):
        return {"c": carry["c"] * x[0]}, ({"y": carry["c"]}, (carry["c"],))

    def alias_input(kept, xs):
        needed_of.append(len(kept))
        return (*kept, xs[0])

    def backward(grad_carry, grad_y_and_needed):
        grad_y, (carry, x) = grad_y_and_needed
        return {"c": grad_carry["c"] * x + grad_y["y"]}, (grad_carry["c"] * carry,)

    start, elements = torch.randn(3), torch.randn(4, 3)
    c, x = start.to("xla").requires_grad_(), elements.to("xla").requires_grad_()
    plain_c, plain_x = start.clone().requires_grad_(), elements.clone().requires_grad_()
    carry, ys = module.Scan.apply(forward, alias_input, backward, {"c": c}, (x,))
    expected, expected_ys = plain_c, []
    for each in plain_x:
        expected_ys.append(expected)
        expected = expected * each
    torch.testing.assert_close(carry["c"].cpu(), expected.detach())
    torch.testing.assert_close(ys["y"].cpu(), torch.stack(expected_ys).detach())
    (carry["c"].sum() + (ys["y"].pow(2).sum() if with_ys else 0)).backward()
    (expected.sum() + (torch.stack(expected_ys).pow(2).sum() if with_ys else 0)).backward()
    torch.testing.assert_close(c.grad.cpu(), plain_c.grad)
    torch.testing.assert_close(x.grad.cpu(), plain_x.grad)
    assert needed_of == [1]
