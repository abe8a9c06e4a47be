"""What torch.compile promises, inference: outputs, aliases, mutations, constants, several graphs."""

import gc

import pytest
import torch
from torch.autograd import forward_ad

from openxla_backend import backend
from tests.openxla_backend.helpers import assert_same, check, compiled, counting, to


def test_module(device):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 3))
    x = torch.randn(5, 6)
    with torch.no_grad():
        expected = model(x)
        actual = compiled(model.to(device))(x.to(device))
    assert_same(actual, expected, device)


@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.complex64],
)
def test_dtypes(dtype, device):
    x = torch.tensor([[0, 1, 2], [3, 4, 5]]).to(dtype)
    check(lambda x: (x + x, x * x, x.t()), x, device=device)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (1, 1)])
def test_odd_shapes(shape, device):
    x = torch.full(shape, 1.5)
    check(lambda x: (x + 1, x * x, x.sum()), x, device=device)


def test_int64_is_kept(device):
    check(lambda x: x + 2**40, torch.tensor([1, 2**50]), device=device)


def test_complex_conjugate(device):
    check(lambda x: (x.conj() * x).real.clone(), torch.randn(3, dtype=torch.complex64), device=device)


def test_conjugate_view_as_an_input():
    x = torch.randn(4, dtype=torch.complex64).conj()
    y = torch.randn(4, dtype=torch.complex64).conj().imag  # a negative view
    assert x.is_conj()
    assert y.is_neg()
    torch.testing.assert_close(compiled(lambda x, y: (x * 2, y * 2))(x, y), (x * 2, y * 2))


def test_tree_of_outputs(device):
    def f(x, d):
        return {"a": x + 1, "b": [x.sum(), (x * d["k"], None)], "n": 3, "f": 0.5, "s": "text", "flag": True}

    check(f, torch.randn(3), {"k": torch.randn(3)}, device=device)


def test_none_and_duplicate_outputs(device):
    def f(x):
        y = x * 2
        return y, None, y, x, x

    x = torch.randn(3).to(device)
    a, none, b, c, d = compiled(f)(x)
    assert a is b
    assert c is x
    assert d is x
    assert none is None
    a.add_(1)
    torch.testing.assert_close(b.cpu(), x.cpu() * 2 + 1)


def test_no_tensor_comes_out(device):
    check(lambda x: x.shape[0] + 1, torch.randn(3), device=device)


def test_output_is_a_view_of_an_input(device):
    def f(x):
        return x.t(), x[1:], x.view(-1)

    x = torch.arange(6.0).reshape(2, 3)
    mine = x.clone().to(device)
    transposed, rows, flat = compiled(f)(mine)
    assert_same((transposed, rows, flat), f(x), device)
    mine.add_(10)
    assert_same((transposed, rows, flat), f(x + 10), device)
    flat[0] = 99
    assert mine[0, 0].item() == 99
    assert transposed[0, 0].item() == 99


def test_outputs_are_views_of_each_other(device):
    def f(x):
        y = x + 1
        return y, y.t(), y[0]

    x = torch.randn(2, 3)
    y, transposed, row = compiled(f)(x.to(device))
    assert_same((y, transposed, row), f(x), device)
    y.zero_()
    assert transposed.abs().sum().item() == 0
    assert row.abs().sum().item() == 0


@pytest.mark.parametrize(
    "view",
    [
        lambda y: y.view(torch.uint8)[3:],
        lambda y: y.view(torch.float32).view(3, 4).t(),
        lambda y: torch.view_as_real(y),
        lambda y: y.imag,
        lambda y: y.conj(),
        lambda y: y.conj().imag,
    ],
    ids=["bytes", "floats", "view_as_real", "imag", "conj", "conj.imag"],
)
def test_outputs_are_views_in_other_dtypes_or_signs(view, device):
    def both(x):
        y = x * (1 + 2j)
        return y, view(y)

    x = torch.arange(6.0)
    (y, seen), (expected, expected_seen) = compiled(both)(x.to(device)), both(x)
    for _ in range(2):
        assert_same(y, expected, device)
        plain, expected_plain = (x.resolve_conj().resolve_neg() for x in (seen, expected_seen))
        assert_same(plain.contiguous(), expected_plain.contiguous(), device)
        y[1:].mul_(3j)
        expected[1:].mul_(3j)


def test_copies_do_not_alias(device):
    """`copy_` and `clone` make memory of their own, although their values are those of another tensor."""

    def f(x):
        copied = torch.empty_like(x)
        copied.copy_(x)
        y = x + 1
        twin = torch.empty_like(y)
        twin.copy_(y)
        return copied, x.clone(), y, twin

    x = torch.randn(3)
    mine = x.clone().to(device)
    copied, cloned, y, twin = compiled(f)(mine)
    copied.zero_()
    cloned.zero_()
    twin.zero_()
    torch.testing.assert_close(mine.cpu(), x)
    torch.testing.assert_close(y.cpu(), x + 1)


def test_detached_output_shares_memory(device):
    def f(x):
        y = x * 2
        return y, y.detach(), x.detach()

    x = torch.randn(3)
    mine = x.clone().to(device)
    y, detached, same = compiled(f)(mine)
    y.zero_()
    assert detached.abs().sum().item() == 0
    same.zero_()
    assert mine.abs().sum().item() == 0


def test_inputs_mutated(device):
    def f(x, y):
        x.add_(1)
        y[0].mul_(2)
        x.t().sub_(3)
        return x * y

    check(f, torch.randn(3, 3), torch.randn(3, 3), device=device)


def test_swapped_inputs(device):
    def f(x, y):
        old = x.clone()
        x.copy_(y)
        y.copy_(old)
        return old

    check(f, torch.randn(3), torch.randn(3), device=device)


def test_mutated_input_is_returned(device):
    def f(x):
        return x.add_(1), x

    x = torch.zeros(2).to(device)
    a, b = compiled(f)(x)
    assert a is x
    assert b is x
    assert x.tolist() == [1, 1]


def test_old_value_of_a_mutated_input(device):
    def f(x):
        before = x.clone()
        kept = torch.empty_like(x)
        kept.copy_(x)
        x.add_(1)
        return before, kept, x * 1

    check(f, torch.randn(3), device=device)


def test_mutation_of_a_view_reaches_the_base(device):
    base = torch.zeros(4, 3).to(device)
    alias = base.view(12)
    compiled(lambda row: row.add_(1))(base[1])
    assert base.sum().item() == 3
    assert alias.cpu().tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("mutate_first", [True, False])
def test_overlapping_inputs(mutate_first, device):
    def f(x, y):
        if mutate_first:
            x.mul_(2)
        else:
            y.mul_(2)
        return x + y

    expected = torch.arange(5.0)
    base = expected.clone().to(device)
    fast = compiled(f)
    for _ in range(2):
        assert_same(fast(base[0:3], base[1:4]), f(expected[0:3], expected[1:4]), device)
        assert_same(base, expected, device)
    # the same graph or another, the answer must not depend on where the views lie
    assert_same(fast(base[2:5], base[0:3]), f(expected[2:5], expected[0:3]), device)
    assert_same(base, expected, device)


def test_same_tensor_twice(device):
    def f(x, y):
        x.add_(1)
        return x * y

    x, expected = torch.ones(3).to(device), torch.ones(3)
    assert_same(compiled(f)(x, x), f(expected, expected), device)
    assert_same(x, expected, device)


def test_in_place_on_views_inside(device):
    def f(x):
        y = torch.zeros(4, 4, device=x.device)
        y[1:3, 1:3] = x
        y.t()[0].add_(5)
        y.diagonal().mul_(2)
        y.view(-1)[3] = 7
        return y, torch.relu_(x - 1)

    check(f, torch.randn(2, 2), device=device)


def test_constants_and_factories(device):
    def f(x):
        table = torch.tensor([1.0, 2.0, 3.0], device=x.device)
        return (
            x + table,
            torch.arange(3, device=x.device),
            torch.ones_like(x),
            torch.full((2,), 7, device=x.device),
            x * torch.tensor(2.0),
        )

    *_, ones, full, _ = check(f, torch.randn(3), device=device)
    ones.add_(1)
    full.add_(1)
    check(f, torch.randn(3), device=device)


def test_constant_outputs_are_fresh(device):
    fast = compiled(lambda x: (torch.tensor([1.0, 2.0], device=x.device), x + 1))
    x = torch.zeros(2).to(device)
    first, _ = fast(x)
    first.zero_()
    assert fast(x)[0].tolist() == [1, 2]


def test_cpu_inputs_moved_inside():
    weight = torch.randn(3, 3)
    on_xla = weight.to("xla")

    def f(x):
        return x.to("xla") @ on_xla

    x = torch.randn(2, 3)
    fast = compiled(f)
    for _ in range(2):
        assert_same(fast(x), x @ weight, "xla")
        x.add_(1)  # the next call must see it


def test_xla_tensors_moved_to_the_cpu_inside():
    def f(x):
        y = x * 2
        return y.cpu(), y, y.sum().cpu() + 1

    x = torch.randn(3)
    host, y, total = compiled(f)(x.to("xla"))
    assert_same((host, total), (x * 2, (x * 2).sum() + 1))
    assert_same(y, x * 2, "xla")
    host.zero_()
    assert_same(y, x * 2, "xla")


def test_cpu_input_mutated_beside_xla():
    def f(x, counter):
        counter.add_(1)
        return x * 2

    x, counter = torch.randn(3), torch.zeros(2)
    assert_same(compiled(f)(x.to("xla"), counter), x * 2, "xla")
    assert counter.tolist() == [1, 1]


def test_pending_lazy_inputs():
    x = torch.randn(3)
    y = x.to("xla") * 3  # not executed
    with counting("DynamoSyncInputExecuteTime") as counts:
        assert_same(compiled(lambda x: x + 1)(y), x * 3 + 1, "xla")
    assert counts["DynamoSyncInputExecuteTime"] == 1


def test_pending_alias_writes_are_seen():
    base = torch.zeros(4).to("xla")
    fast = compiled(lambda x: x + 1)
    view = base[1:3]
    for value in (1.0, 2.0):
        view.fill_(value)
        assert fast(base).cpu().tolist() == [1, 1 + value, 1 + value, 1]
    base.fill_(7)
    assert fast(view).cpu().tolist() == [8, 8]


def test_graph_breaks(device):
    def f(x):
        y = x + 1
        torch._dynamo.graph_break()
        z = y.mul_(2)
        if z.sum() > 0:  # read on the way: another break
            return z - 1
        return z + 1

    check(f, torch.ones(3), device=device)
    check(f, -3 * torch.ones(3), device=device)


def test_no_grad_inside(device):
    def f(x):
        with torch.no_grad():
            y = x * 2
        return y, x * 3

    check(f, torch.randn(3, requires_grad=True), device=device)


def test_inference_mode(device):
    weight = torch.randn(3, 3)
    mine = weight.to(device)

    def f(x, w):
        x.add_(1)
        return x @ w

    x = torch.randn(2, 3)
    with torch.inference_mode():
        inside = x.clone().to(device)
        assert_same(compiled(f)(inside, mine), f(x, weight), device)
        assert_same(inside, x, device)


def test_channels_last(device):
    conv = torch.nn.Conv2d(3, 8, 3, padding=1).to(memory_format=torch.channels_last).eval()
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)

    def f(model, x):
        return torch.relu(model(x)), x + 1, x.sum(1)

    with torch.no_grad():
        expected = f(conv, x)
        conv = conv.to(device)
        actual = compiled(f)(conv, x.to(device))
    assert expected[0].is_contiguous(memory_format=torch.channels_last)
    # on xla, eager torch's own convolution gives contiguous results
    assert_same(actual, expected, device, strides=device == "cpu")


@pytest.mark.parametrize("case", ["transposed", "sliced", "expanded", "stepped", "flipped dims", "offset"])
def test_strided_inputs(case, device):
    base = torch.randn(6, 8)
    make = {
        "transposed": lambda t: t.t(),
        "sliced": lambda t: t[:, 2:5],
        "expanded": lambda t: t[:1].expand(6, 8),
        "stepped": lambda t: t[::2, ::3],
        "flipped dims": lambda t: t.view(2, 3, 8).permute(2, 0, 1),
        "offset": lambda t: t.view(-1)[1:],
    }[case]
    mine, theirs = make(base.clone().to(device)), make(base)
    fast = compiled(lambda x: (x + 1, x * 2, x.sum(0), x.contiguous()))
    for _ in range(2):
        assert_same(fast(mine), (theirs + 1, theirs * 2, theirs.sum(0), theirs.contiguous()), device)
        if case != "expanded":
            mine.add_(1)
            theirs.add_(1)


def test_dropout_outside_of_training(device):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.9)).eval()
    x = torch.randn(2, 4)
    expected = model(x)
    assert_same(compiled(model.to(device))(x.to(device)), expected, device)


def test_random_numbers(device):
    x = torch.ones(1000).to(device)
    fast = compiled(lambda x: (torch.rand_like(x), torch.nn.functional.dropout(x, 0.5)))
    torch.manual_seed(3)
    first, second = fast(x), fast(x)
    torch.manual_seed(3)
    again = fast(x)
    for a, b, c in zip(first, second, again, strict=True):
        assert not torch.equal(a.cpu(), b.cpu())
        assert torch.equal(a.cpu(), c.cpu())
    assert 0.4 < (first[1] == 0).float().mean().item() < 0.6


def test_floats_that_change_do_not_recompile(device):
    fast = compiled(lambda x, scale: x * scale)
    x = torch.randn(3)
    mine = x.to(device)
    for scale in (0.1, 0.2, 0.3):
        assert_same(fast(mine, scale), x * scale, device)
    with counting("DynamoExtractCompiledGraph", "UncachedCompile") as counts:
        for scale in (0.4, 0.5, 0.6):
            assert_same(fast(mine, scale), x * scale, device)
    assert counts == {"DynamoExtractCompiledGraph": 0, "UncachedCompile": 0}


def test_state_of_modules(device):
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x):
            self.seen += 1
            self.mean.lerp_(x.mean(0), 0.5)
            return x - self.mean

    model, reference = Counter().to(device), Counter()
    buffers = list(model.buffers())
    alias = model.mean.view(3)
    fast = compiled(model)
    for _ in range(3):
        x = torch.randn(4, 3)
        assert_same(fast(to(x, device)), reference(x), device)
    assert all(a is b for a, b in zip(buffers, model.buffers(), strict=True))
    assert_same(list(model.buffers()), list(reference.buffers()), device)
    assert_same(alias, reference.mean, device)


def test_garbage_is_not_collected_while_compiling(monkeypatch):
    seen = []
    compiler = backend._compile_inference

    def spy(*args, **options):
        seen.append(gc.isenabled())
        return compiler(*args, **options)

    monkeypatch.setattr(backend, "_compile_inference", spy)
    with torch.no_grad():
        torch.compile(lambda x: x + 1, backend="openxla")(torch.ones(3))
    assert (seen, gc.isenabled()) == ([False], True)


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_a_constant_number_that_vmap_casts(device):
    check(torch.vmap(lambda number: number / 7), torch.randn(3, dtype=torch.float64), device=device)
    check(torch.vmap(lambda number: number / 7), torch.arange(3), device=device)


# torch's own decompositions for forward mode
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # a FutureWarning from torch 2.14 on
@pytest.mark.parametrize("device", ["cpu", "xla"])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_forward_mode_derivatives_are_not_lost(device, requires_grad):
    """Neither of what is compiled within the dual level, nor of what was compiled before."""
    weight = torch.randn(3, 3, dtype=torch.float64)
    x = torch.randn(2, 3, dtype=torch.float64)
    there = weight.to(device, copy=True).requires_grad_(requires_grad)
    fast = compiled(lambda x: (x @ there).sin())
    expected = (x @ weight).cos() * (torch.ones_like(x) @ weight)
    fast(x.to(device))
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(fast(forward_ad.make_dual(x.to(device), torch.ones_like(x).to(device)))).tangent
    assert found is not None
    torch.testing.assert_close(found.detach().cpu(), expected)
    assert_same(fast(x.to(device)).detach(), (x @ weight).sin(), device)
