"""Matrix products that torch's kernels compute, with matrices as they lie, and which those are."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
import torch

from lazy_runtime import debug
from lazy_runtime.common import config, processor
from lazy_runtime.compilation import compiler, kernel_thread
from lazy_runtime.debug import compiling
from lazy_runtime.lowering import aten_bridge, layout
from lazy_runtime.ops.linalg import matmul_aten, matmul_onednn, matmul_xla
from tests import native_part
from tests.lazy_runtime.ops.comparison import check, rand

native_part.need_bridge()

BFLOAT16 = torch.bfloat16


def normal(*sizes, dtype=BFLOAT16):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.fixture
def calls(monkeypatch):
    """The operators that programs call, whatever the sizes; with each, how its operands lie."""
    found = []
    for kernel, name in ((matmul_aten, "LEAST_BFLOAT16"), (matmul_aten, "LEAST_MKL"), (matmul_onednn, "LEAST")):
        monkeypatch.setattr(kernel, name, 1)
    called = aten_bridge.call

    def call(name, arguments, results):
        found.append((name, [isinstance(x, layout.Transposed) for x in arguments if hasattr(x, "shape")]))
        return called(name, arguments, results)

    monkeypatch.setattr(aten_bridge, "call", call)
    return found


PRODUCTS = {
    "mm": (lambda x: x @ x.flip(1).reshape(20, 17), (17, 20), [("aten::mm.out", [False, False])]),
    "second turned": (lambda x: x @ x.t(), (17, 21), [("aten::mm.out", [False, True])]),
    "first turned": (lambda x: x.t() @ x, (17, 22), [("aten::mm.out", [True, False])]),
    "turned twice": (lambda x: x @ x.t().contiguous().t().t(), (17, 23), [("aten::mm.out", [False, False])]),
    "linear": (
        lambda x: torch.nn.functional.linear(x, x, x[:, 0]),
        (17, 24),
        [("aten::addmm.out", [False, False, True])],
    ),
    "bmm": (lambda x: torch.bmm(x, x.mT), (3, 17, 25), [("aten::bmm.out", [False, True])]),
    "batches of batches": (lambda x: x @ x.mT, (2, 3, 17, 26), [("aten::bmm.out", [False, True])]),
    "scaled": (lambda x: torch.addmm(x[:, :17], x, x.t(), beta=0.5), (17, 27), []),
    "a vector": (lambda x: x @ x[0], (17, 28), []),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_bfloat16_are_torchs_own(calls, monkeypatch, name):
    compiler.clear()  # the graph is the same
    monkeypatch.setenv("XLA_CPU_BFLOAT16_PRODUCTS", "bfloat16")
    function, sizes, expected = PRODUCTS[name]
    x = normal(*sizes)
    found = function(x.to("xla")).cpu()
    assert calls == expected
    torch.testing.assert_close(found, function(x), rtol=0 if expected else 2e-2, atol=0 if expected else 1e-2)


OF_FLOAT32 = {
    "mm": (lambda x: x @ x.t(), (17, 29), "aten::mm.out"),
    "linear": (lambda x: torch.nn.functional.linear(x, x, x[:, 0]), (17, 29), "aten::mm.out"),
    "linear of batches": (lambda x: torch.nn.functional.linear(x, x[0], x[0, :, 0]), (3, 17, 29), "aten::mm.out"),
    "scaled": (lambda x: torch.addmm(x[:, :17], x, x.t(), beta=0.5, alpha=2), (17, 29), "aten::mm.out"),
    "bmm": (lambda x: torch.bmm(x, x.mT), (3, 17, 29), "aten::bmm.out"),
    "baddbmm": (lambda x: torch.baddbmm(x[:, :, :17], x, x.mT, beta=2), (3, 17, 29), "aten::bmm.out"),
}


@pytest.mark.parametrize("owner", ["torch", "xla"])
@pytest.mark.parametrize("name", OF_FLOAT32)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_of_float32_are_theirs_whom_the_variable_says(calls, monkeypatch, dtype, name, owner):
    compiler.clear()  # the graph is the same
    monkeypatch.setenv("XLA_CPU_PRODUCTS", owner)
    function, sizes, expected = OF_FLOAT32[name]
    x = normal(*sizes, dtype=dtype)
    found = function(x.to("xla")).cpu()
    assert [called for called, _ in calls] == ([expected] if owner == "torch" else [])
    torch.testing.assert_close(found, function(x))


@pytest.mark.parametrize("owner", ["torch", "xla"])
def test_gradients_of_float32_products(calls, monkeypatch, owner):
    compiler.clear()
    monkeypatch.setenv("XLA_CPU_PRODUCTS", owner)
    expected = []
    for device in ("cpu", "xla"):
        inputs = [normal(n, 31, dtype=torch.float64).to(device).requires_grad_() for n in (17, 19)]
        torch.nn.functional.linear(*inputs).square().sum().backward()
        expected.append([tensor.grad.cpu() for tensor in inputs])
    assert len(calls) == (3 if owner == "torch" else 0)
    for ours, theirs in zip(*expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.fixture
def amd(monkeypatch):
    """The processor is one of AMD's."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN")
    monkeypatch.delenv("XLA_CPU_PRODUCTS", raising=False)
    monkeypatch.setattr(processor, "is_intel", lambda: False)
    monkeypatch.setattr(processor, "is_amd", lambda: True)
    compiler.clear()
    yield
    compiler.clear()


@pytest.fixture
def between(amd, monkeypatch):
    """And programs call other kernels too."""
    monkeypatch.setattr(kernel_thread, "has_other_kernels", lambda graph: True)


@pytest.mark.parametrize("name", OF_FLOAT32)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_of_float32_are_onednns_on_amd(calls, between, dtype, name):
    function, sizes, called = OF_FLOAT32[name]
    x = normal(*sizes, dtype=dtype)
    found = function(x.to("xla")).cpu()
    is_onednns = dtype is torch.float32 and called == "aten::mm.out"
    assert [name for name, _ in calls] == (["mkldnn::_linear_pointwise"] if is_onednns else [])
    torch.testing.assert_close(found, function(x))


@pytest.mark.parametrize(
    ("function", "turned"),
    [
        (lambda x: x.t() @ x, [True, True]),
        (lambda x: x @ x.t(), [False, False]),
        (lambda x: x @ x.flip(1).reshape(29, 17), [False, True]),
    ],
)
def test_matrices_are_read_as_they_lie_by_onednn(calls, between, function, turned):
    x = normal(17, 29, dtype=torch.float32)
    torch.testing.assert_close(function(x.to("xla")).cpu(), function(x))
    assert calls == [("mkldnn::_linear_pointwise", turned)]


def test_gradients_by_onednn(calls, between):
    expected = []
    for device in ("cpu", "xla"):
        inputs = [normal(n, 31, dtype=torch.float32).to(device).requires_grad_() for n in (17, 19)]
        torch.nn.functional.linear(*inputs).square().sum().backward()
        expected.append([tensor.grad.cpu() for tensor in inputs])
    assert [name for name, _ in calls] == ["mkldnn::_linear_pointwise"] * 3
    for theirs, ours in zip(*expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_row_is_no_product_for_onednn(calls, between):
    x = normal(1, 29, dtype=torch.float32)
    torch.testing.assert_close((x.to("xla") @ x.to("xla").t()).cpu(), x @ x.t())
    assert not calls


@pytest.mark.parametrize("convolves", [True, False])
def test_products_are_onednns_only_between_other_kernels(calls, amd, convolves):
    x = normal(64, 1024, dtype=torch.float32)
    filters = normal(16, 16, 5, 5, dtype=torch.float32) / 20  # pixels stay of size 1

    def function(x, filters):
        if convolves:
            image = torch.nn.functional.conv2d(x.reshape(4, 16, 32, 32), filters, padding=2)
            x = x + image.reshape(64, 1024)
        return x @ x.t()

    found = function(x.to("xla"), filters.to("xla")).cpu()
    torch.testing.assert_close(found, function(x, filters), rtol=1e-4, atol=1e-3)  # of sums of 1024 terms
    assert [name for name, _ in calls] == (["aten::convolution", "mkldnn::_linear_pointwise"] if convolves else [])


@pytest.mark.parametrize("is_intel", [True, False])
def test_torchs_library_is_for_intels_processors(monkeypatch, is_intel):
    monkeypatch.delenv("XLA_CPU_PRODUCTS", raising=False)
    monkeypatch.setattr(processor, "is_intel", lambda: is_intel)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    assert (config.matmul_library() == "torch") is is_intel
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    assert config.matmul_library() != "torch"


@pytest.mark.parametrize("dtype", [torch.float16, torch.int64, torch.complex64])
def test_others_are_xlas(calls, monkeypatch, dtype):
    monkeypatch.setenv("XLA_CPU_PRODUCTS", "torch")
    x = normal(17, 29, dtype=dtype).to("xla")
    (x @ x.t()).cpu()
    assert not calls


def test_small_products_are_no_calls(calls, monkeypatch):
    monkeypatch.setenv("XLA_CPU_PRODUCTS", "torch")
    for name, dtype in (("LEAST_BFLOAT16", BFLOAT16), ("LEAST_MKL", torch.float32)):
        monkeypatch.setattr(matmul_aten, name, 17 * 17 * 30 + 1)
        x = normal(17, 30, dtype=dtype).to("xla")
        (x @ x.t()).cpu()
    assert not calls


def test_gradients_of_bfloat16_products(calls):
    x, weight = normal(17, 31), normal(19, 31)
    expected = []
    for device in ("cpu", "xla"):
        inputs = [tensor.detach().to(device).requires_grad_() for tensor in (x, weight)]
        torch.nn.functional.linear(*inputs).square().sum().backward()
        expected.append([tensor.grad.cpu() for tensor in inputs])
    assert len(calls) == 3
    for ours, theirs in zip(*expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=1e-2)


SEEN = {
    "as it is": lambda x: x.t(),
    "by an elementwise operator": lambda x: x.t() + x.t().exp(),
    "by one with another operand": lambda x: x.t() * x.reshape(x.t().shape),
    "by an operator of images": lambda x: torch.nn.functional.max_pool1d(x.t()[None], 2),
    "by a copy": lambda x: x.t().to(torch.float32),
    "joined": lambda x: torch.cat([x.t(), x.t()]),
    "split": lambda x: x.t()[1:, :3],
    "with other sizes": lambda x: x.t().reshape(-1),
    "expanded": lambda x: x.t().expand(2, 4, 6),
    "turned again": lambda x: x.t().t() + 1,
    "turned among others": lambda x: x[None].mT.transpose(0, 1),
    "reduced": lambda x: x.t().sum(0),
    "in place": lambda x: x.clone().t_().mul_(2),
    "by a fallback": lambda x: torch.cdist(x.t().float(), x.t().float()),
}


@pytest.mark.parametrize("name", SEEN)
def test_a_turned_matrix_is_seen_in_torchs_order(name):
    x = normal(6, 4)
    torch.testing.assert_close(SEEN[name](x.to("xla")).cpu(), SEEN[name](x), rtol=1e-2, atol=1e-2)


def test_a_whole_program_compiled():
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)).to(BFLOAT16)
    x = normal(256, 64)
    compiling.clear()
    with torch.no_grad():
        expected = model(x)
        found = torch.compile(model.to("xla"), backend="openxla")(x.to("xla")).cpu()
    assert debug.compilations()
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("shape", [(1, 512), (1, 1, 512)])
def test_a_weight_is_not_copied_for_one_row(shape):
    x, weight = jnp.ones(shape), jnp.ones((700, 512))
    program = jax.jit(lambda x, weight: matmul_xla.product(x, weight.T)).lower(x, weight).compile()
    assert program(x, weight).shape == (*shape[:-1], 700)
    assert " copy(" not in program.as_text()


@pytest.mark.parametrize("name", ["addmm", "baddbmm", "addbmm"])
def test_a_transposed_summand(name):
    batch = () if name == "addmm" else (3,)
    x = rand(*(batch if name == "baddbmm" else ()), 5, 4)
    first, second = rand(*batch, 4, 2), rand(*batch, 2, 5)
    for beta in (1, 0.5, 0):
        check(
            lambda *operands, beta=beta: getattr(torch, name)(operands[0].mT, *operands[1:], beta=beta),
            x,
            first,
            second,
        )
