"""The distributions that random operators draw from. Seeded, so that no bound can flake; each is four to six standard
errors of its estimate wide, so that a wrong distribution does not fit.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from lazy_runtime.ops import registry

N = 200_000
ROOT = math.sqrt(N)
FLOATS = [torch.float32, torch.float64, torch.bfloat16]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(1234)


def moments(x):
    x = x.detach().cpu().double()
    return x.mean().item(), x.std().item()


def assert_moments(x, mean, std, fourth=3.0):
    """Mean and standard deviation of a sample; `fourth` is the distribution's kurtosis."""
    rounding = 2**-8 * (abs(mean) + std) if x.dtype == torch.bfloat16 else 0.0  # to 8 bits, at most half a unit
    got_mean, got_std = moments(x)
    assert got_mean == pytest.approx(mean, abs=5 * std / ROOT + rounding)
    assert got_std == pytest.approx(std, abs=5 * std * math.sqrt((fourth - 1) / 4) / ROOT + rounding)


@pytest.mark.parametrize("dtype", FLOATS)
def test_normal(dtype):
    x = torch.randn(N, dtype=dtype, device="xla")
    assert x.dtype == dtype
    assert_moments(x, 0, 1)
    x = x.cpu().double()
    assert (x.pow(3).mean().item(), x.pow(4).mean().item()) == (pytest.approx(0, abs=0.05), pytest.approx(3, abs=0.12))
    assert x.abs().max() < 8
    assert_moments(torch.empty(N, dtype=dtype, device="xla").normal_(3, 2), 3, 2)
    assert_moments(torch.randn_like(x.to("xla").to(dtype)), 0, 1)


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform(dtype):
    x = torch.empty(N, dtype=dtype, device="xla").uniform_(-2, 4)
    assert_moments(x, 1, 6 / math.sqrt(12), fourth=1.8)
    x = x.cpu().double()
    assert x.min() >= -2
    assert x.max() <= 4  # bfloat16 rounds what lies just below up to it
    quarters = torch.histc(x, 4, -2, 4) / N
    assert quarters.tolist() == pytest.approx([0.25] * 4, abs=5 * math.sqrt(3 / 16) / ROOT + 2**-8)
    assert_moments(torch.rand(N, dtype=dtype, device="xla"), 0.5, 1 / math.sqrt(12), fourth=1.8)


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
def test_bernoulli(p):
    for x in (
        torch.empty(N, device="xla").bernoulli_(p),
        torch.bernoulli(torch.full((N,), p, device="xla")),
        torch.empty(N, device="xla").bernoulli_(torch.full((N,), p, device="xla")),
    ):
        assert set(x.tolist()) <= {0.0, 1.0}
        assert moments(x)[0] == pytest.approx(p, abs=5 * math.sqrt(p * (1 - p)) / ROOT)


def test_bernoulli_of_each_elements_own_probability():
    p = torch.tensor([0.0, 0.25, 1.0]).repeat_interleave(N).reshape(3, N)
    assert torch.bernoulli(p.to("xla")).mean(1).tolist() == pytest.approx([0, 0.25, 1], abs=0.006)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("p", [0.0, 0.3, 0.9, 1.0])
def test_dropout(p, dtype):
    x = torch.full((N,), 2.0, dtype=dtype, device="xla", requires_grad=True)
    y = F.dropout(x, p)
    y.sum().backward()
    kept = y.detach().cpu() != 0
    assert kept.double().mean().item() == pytest.approx(1 - p, abs=5 * math.sqrt(p * (1 - p)) / ROOT)
    scale = torch.tensor(1 / (1 - p) if p < 1 else 0.0).to(dtype)
    torch.testing.assert_close(y.detach().cpu(), torch.where(kept, 2 * scale, 0))
    torch.testing.assert_close(x.grad.cpu(), torch.where(kept, scale, 0))
    assert torch.equal(F.dropout(x, p, training=False).cpu(), x.cpu())


def test_neighbours_are_not_correlated():
    x = torch.randn(2, N, device="xla").cpu().double()
    assert (x[0] * x[1]).mean().abs() < 5 / ROOT
    assert (x[0, 1:] * x[0, :-1]).mean().abs() < 5 / ROOT


def test_exponential():
    x = torch.empty(N, device="xla").exponential_(2.0)
    assert_moments(x, 0.5, 0.5, fourth=9)
    assert x.min().item() >= 0


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.float32])
def test_randint(dtype):
    x = torch.randint(3, 9, (N,), dtype=dtype, device="xla")
    assert x.dtype == dtype
    counts = torch.bincount(x.cpu().long(), minlength=9)
    assert counts[:3].tolist() == [0, 0, 0]
    assert (counts[3:] / N).tolist() == pytest.approx([1 / 6] * 6, abs=5 * math.sqrt(5) / 6 / ROOT)
    assert torch.randint_like(x, 1).count_nonzero() == 0


@pytest.mark.parametrize(
    ("dtype", "high"),
    [(torch.bool, 2), (torch.uint8, 256), (torch.int8, 128), (torch.int32, 2**31), (torch.float32, 2**24 + 1)],
)
def test_random_fills_the_range_of_its_dtype(dtype, high):
    x = torch.empty(N, dtype=dtype, device="xla").random_().cpu().double()
    assert x.min() >= 0
    assert x.max() < high
    uniform = (high - 1) / 2, math.sqrt((high**2 - 1) / 12)
    assert moments(x) == (
        pytest.approx(uniform[0], abs=5 * uniform[1] / ROOT),
        pytest.approx(uniform[1], abs=5 * uniform[1] / ROOT),
    )


def test_random_between_bounds():
    x = torch.empty(N, dtype=torch.int64, device="xla").random_(-5, 5).cpu()
    assert x.unique().tolist() == list(range(-5, 5))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_randperm(dtype):
    first, second = (torch.randperm(1000, dtype=dtype, device="xla") for _ in range(2))
    assert first.dtype == dtype
    assert first.sort().values.tolist() == second.sort().values.tolist() == list(range(1000))
    assert first.tolist() != second.tolist()
    # the places of a random permutation do not remember what stood there: Spearman's rank correlation
    rank = torch.arange(1000.0)
    assert torch.corrcoef(torch.stack([rank, first.cpu().float()]))[0, 1].abs() < 5 / math.sqrt(1000)


@pytest.mark.parametrize("compiled", [False, True])
def test_two_draws_differ_and_a_seed_repeats_them(compiled):
    def draw(x):
        return torch.rand_like(x), torch.randn(4, device=x.device), F.dropout(x, 0.5), torch.rand_like(x)

    if compiled:
        torch._dynamo.reset()
        draw = torch.compile(draw, backend="openxla")
    x = torch.ones(64, device="xla")
    first, second = draw(x), draw(x)
    torch.manual_seed(1234)
    again = draw(x)
    for a, b, c in zip(first, second, again, strict=True):
        assert not torch.equal(a, b)
        assert torch.equal(a, c)
    assert not torch.equal(first[0], first[3])


def test_every_random_operator_of_the_cpu_is_lowered():
    """Functional overloads with a CPU kernel that draw numbers; those that torch takes apart are made of these."""
    keys = torch._C.DispatchKey
    names = {schema.name for schema in torch._C._jit_get_all_schemas() if schema.name.startswith("aten::")}
    packets = [getattr(torch.ops.aten, name.removeprefix("aten::"), None) for name in names]
    seeded = [
        target
        for packet in packets
        if packet is not None
        for target in (getattr(packet, name) for name in packet.overloads() if "names" not in name)
        if torch.Tag.nondeterministic_seeded in target.tags and not target._schema.is_mutable
    ]
    missing = {
        target.name()
        for target in seeded
        if target not in registry.table
        and target.has_kernel_for_dispatch_key(keys.CPU)
        and not target.has_kernel_for_dispatch_key(keys.CompositeImplicitAutograd)
    }
    # chooses an implementation of attention, and draws nothing
    assert missing <= {"aten::_fused_sdp_choice"}
    assert len(seeded) > 40


@pytest.mark.parametrize("dtypes", [(torch.float16, torch.float32), (torch.float32, torch.float64)], ids=str)
def test_normal_has_the_dtype_of_its_mean(dtypes):
    mean, std = torch.zeros(1, 3, dtype=dtypes[0]), torch.ones(2, 1, dtype=dtypes[1])
    expected, result = torch.normal(mean, std), torch.normal(mean.to("xla"), std.to("xla"))
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)


@pytest.mark.parametrize("mask", [torch.bool, torch.float64, torch.complex64], ids=str)
def test_the_dtype_of_dropout_s_gradient(mask):
    gradient = torch.ops.aten.native_dropout_backward
    expected = gradient(torch.ones(3), torch.ones(3, dtype=mask), 2.0)
    result = gradient(torch.ones(3, device="xla"), torch.ones(3, dtype=mask, device="xla"), 2.0).cpu()
    assert result.dtype == expected.dtype
    assert result.equal(expected)
