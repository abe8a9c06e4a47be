"""Fake quantization: values, masks, gradients, and what a module observes, as on the CPU."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

import lazy_runtime

aten = torch.ops.aten
INF, NAN = math.inf, math.nan
PER_TENSOR = aten.fake_quantize_per_tensor_affine_cachemask
OF_TENSORS = aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams
PER_CHANNEL = aten.fake_quantize_per_channel_affine_cachemask


def compare(function, *args):
    """Not only close: an integer more or less would be a step of the scale."""
    torch.testing.assert_close(
        [x.cpu() for x in function(*moved(args))], list(function(*args)), rtol=0, atol=0,
        equal_nan=True,
    )  # fmt: skip


def moved(args):
    return [x.to("xla") if isinstance(x, torch.Tensor) else x for x in args]


def spread(*sizes):
    """Numbers of which some are between two integers, some beyond their range."""
    return torch.cat([torch.randn(math.prod(sizes) - 6) * 8, torch.tensor([-0.0, 0.05, 0.15, -0.25, 1e5, -1e5])]).view(
        sizes
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("scale", "zero_point", "low", "high"), [(0.1, 3, -128, 127), (0.3, 100, 0, 255)])
def test_one_scale(dtype, scale, zero_point, low, high):
    x = spread(5, 20).to(dtype)
    compare(PER_TENSOR, x, scale, zero_point, low, high)
    for enabled in (0, 1):
        compare(
            OF_TENSORS, x, torch.tensor([scale]), torch.tensor([zero_point]), torch.tensor([enabled]), low, high
        )  # fmt: skip


def test_many_integers():
    compare(PER_TENSOR, spread(50) * 1e4, 1e-4, 5, -(2**31), 2**31 - 1)


def test_what_is_not_finite():
    compare(PER_TENSOR, torch.tensor([INF, -INF, NAN, 1e30]), 0.1, 0, -128, 127)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("zero_point", [torch.int32, torch.float32, torch.float16])
def test_a_scale_of_each_channel(dtype, axis, zero_point):
    x = (spread(3, 4, 5) / 100).to(dtype)
    channels = x.shape[axis]
    points = (torch.rand(channels) * 14 - 7).to(zero_point)
    compare(PER_CHANNEL, x, torch.rand(channels) + 0.01, points, axis, -8, 7)


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (PER_TENSOR, (0.1, 300, -128, 127)),
        (PER_TENSOR, (0.1, 0, 128, 127)),
        (OF_TENSORS, (torch.ones(2), torch.zeros(2), torch.ones(1), -128, 127)),
        (PER_CHANNEL, (torch.ones(3), torch.zeros(3, dtype=torch.int32), 0, -128, 127)),
        (PER_CHANNEL, (torch.ones(4), torch.zeros(4, dtype=torch.int64), 0, -128, 127)),
        (PER_CHANNEL, (torch.ones(4), torch.zeros(4), 5, -128, 127)),
    ],
)
def test_refusals(function, args):
    x = torch.ones(4, 5)
    with pytest.raises((RuntimeError, IndexError)) as expected:
        function(x, *args)
    with pytest.raises(expected.type) as raised:
        function(x.to("xla"), *moved(args))
    assert str(expected.value) in str(raised.value)


def test_a_zero_point_out_of_range():
    args = torch.ones(4, 5), torch.ones(4), torch.tensor([0, 0, 300, 0], dtype=torch.int32), 0, -128, 127
    found = PER_CHANNEL(*moved(args))
    with pytest.raises(RuntimeError, match="`zero_point` must be between `quant_min` and `quant_max`"):
        lazy_runtime.sync(wait=True)
    del found  # until here it is wanted


def test_gradients():
    scales, points = torch.rand(4) + 0.1, torch.zeros(4, dtype=torch.int32)
    for function in (
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127),
        lambda x: torch.fake_quantize_per_channel_affine(x, scales.to(x.device), points.to(x.device), 0, -128, 127),
    ):
        x = spread(4, 10)
        gradients = []
        for device in ("cpu", "xla"):
            leaf = x.detach().to(device, copy=True).requires_grad_()
            (function(leaf) * torch.arange(10, device=device)).sum().backward()
            gradients.append(leaf.grad.cpu())
        assert torch.equal(*gradients)
        assert len(gradients[0].unique()) > 2


# ---- what a module observes


def observed(x, observing, quantizing, state, *rest):
    """What `fused_moving_avg_obs_fake_quant` gives and leaves."""
    state = [one.to(x.device, copy=True) for one in state]
    flags = [torch.tensor([on], device=x.device) for on in (observing, quantizing)]
    return (torch.fused_moving_avg_obs_fake_quant(x, *flags, *state, *rest), *state)


def check_observed(xs, state, *rest):
    for observing, quantizing in itertools.product((0, 1), (1, 0)):
        expected = found = state
        for x in xs:
            expected = observed(x, observing, quantizing, expected[-4:], *rest)
            found = observed(x.to("xla"), observing, quantizing, found[-4:], *rest)
            if not quantizing and not state[0].numel():  # what there was no scale for the CPU leaves uninitialized
                expected = (*expected[:3], *(one.cpu() for one in found[3:]))
            for ours, torchs in zip(found, expected, strict=True):
                torch.testing.assert_close(ours.cpu(), torchs, rtol=3e-7, atol=0)


def fresh(count=None):
    if count is None:
        return torch.tensor(INF), torch.tensor(-INF), torch.ones(1), torch.zeros(1, dtype=torch.int32)
    return torch.full((count,), INF), torch.full((count,), -INF), torch.ones(count), torch.zeros(count).int()


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(("low", "high"), [(-128, 127), (0, 127)])
def test_what_is_observed(symmetric, low, high):
    xs = [torch.randn(3, 40) + shift for shift in (0.0, 0.5, -9.0, 9.0)]
    check_observed(xs, fresh(), 0.01, low, high, -1, False, symmetric)
    check_observed(xs, fresh(3), 0.01, low, high, 0, True, symmetric)
    unseen = torch.tensor([]), torch.tensor([]), torch.ones(1), torch.zeros(1, dtype=torch.int32)
    check_observed(xs, unseen, 0.01, low, high, 0, True, symmetric)
    check_observed([x.view(3, 4, 10) for x in xs], unseen, 0.01, low, high, 0, True, symmetric)


@pytest.mark.parametrize("symmetric", [False, True])
def test_scales_of_any_range(symmetric):
    lows = torch.tensor([0.0, -1e-6, 0.0, -1e-6, -1e-30, -1e-3, 1.0, -2.0, -3e4, -1e30, INF])
    highs = torch.tensor([0.0, 1e-6, 1e-6, 0.0, 1e-30, 1e5, 2.0, -1.0, 1.0, 1e30, -INF])
    x = torch.randn(len(lows), 4)
    state = lows, highs, torch.ones(len(lows)), torch.zeros(len(lows)).int()
    for low, high in ((-128, 127), (0, 255), (-8, 7)):
        args = 0, 1, state, 0.01, low, high, 0, True, symmetric
        for ours, torchs in zip(observed(x.to("xla"), *args), observed(x, *args), strict=True):
            assert torch.equal(ours.cpu(), torchs)


@pytest.mark.parametrize(
    ("x", "state", "axis", "per_channel"),
    [
        (torch.ones(3, 4), fresh(4), 1, True),
        (torch.ones(3, 4).double(), fresh(), 0, False),
        (torch.ones(3, 4).bfloat16(), fresh(), 0, False),
    ],
)
def test_what_cannot_be_observed(x, state, axis, per_channel):
    rest = state, 0.01, -128, 127, axis, per_channel, False
    expected = observed(x, 0, 1, *rest)
    for ours, torchs in zip(observed(x.to("xla"), 0, 1, *rest), expected, strict=True):
        torch.testing.assert_close(ours.cpu(), torchs, rtol=0, atol=0)
    with pytest.raises(RuntimeError) as expected:
        observed(x, 1, 1, *rest)
    found = observed(x.to("xla"), 1, 1, *rest)
    with pytest.raises(RuntimeError) as raised:
        lazy_runtime.sync(wait=True)
    assert str(expected.value) in str(raised.value)
    del found


def test_sizes_that_do_not_fit():
    for state, per_channel in ((fresh(2), True), (fresh(3), False)):
        for device in ("cpu", "xla"):
            with pytest.raises(RuntimeError, match=r"scale and zero.point|a Tensor with 3 elements"):
                observed(torch.ones(3, 4, device=device), 0, 1, state, 0.01, -128, 127, 0, per_channel)
    unseen = torch.tensor([]), torch.tensor([]), torch.ones(1), torch.zeros(1, dtype=torch.int32)
    with pytest.raises(RuntimeError, match="takes one minimum"):  # on the CPU it ends the process
        observed(torch.ones(3, 4, device="xla"), 1, 1, unseen, 0.01, -128, 127, 0, False)


def test_nothing_is_observed():
    check_observed([torch.ones(0, 4)], fresh(), 0.01, -128, 127, 0, False)
