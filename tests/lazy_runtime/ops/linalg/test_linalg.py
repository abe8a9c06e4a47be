"""Linear algebra: what torch's samples do not cover, and the precision of products."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import lazy_runtime
from lazy_runtime.lowering import precision
from lazy_runtime.ops import registry
from tests.lazy_runtime.ops.comparison import check, close, rand

L = torch.linalg
NAN, INF = math.nan, math.inf
SINGULAR = torch.tensor([[1.0, 2], [2, 4]])
WITH_NAN = torch.tensor([[NAN, 1.0], [1, 2]])


def raises_alike(function, *args):
    """The same type and message on the CPU and on xla, where it may come with the results."""

    def on_xla():
        kept = function(*(x.to("xla") if isinstance(x, torch.Tensor) else x for x in args))  # else it is dead code
        lazy_runtime.sync(wait=True)
        return kept

    with pytest.raises((RuntimeError, IndexError, ValueError, TypeError)) as expected:
        function(*args)
    with pytest.raises(type(expected.value)) as found:
        on_xla()
    assert str(found.value).startswith(str(expected.value).split("\n")[0])


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (L.inv, SINGULAR),
        (L.inv, torch.stack([torch.eye(2), SINGULAR])),
        (lambda x: L.solve(x, x), SINGULAR),
        (lambda x: L.lu_factor_ex(x, check_errors=True), SINGULAR),
        (L.cholesky, -SINGULAR),
        (L.svd, WITH_NAN),
        (L.svdvals, WITH_NAN[None]),
        (L.pinv, WITH_NAN),
        (L.eig, WITH_NAN),
        (torch.cholesky_inverse, torch.zeros(2, 2)),
        (lambda x: L.lstsq(x, x, driver="gels"), torch.diag(torch.tensor([1.0, 0.0]))),
        (lambda x: L.lu_factor(x, pivot=False), SINGULAR),
        (lambda x: torch.lu_unpack(x, torch.full((2,), 3, dtype=torch.int32, device=x.device)), SINGULAR),
        (lambda x: L.lu_solve(x, torch.zeros(2, dtype=torch.int32, device=x.device), x), torch.eye(2)),
        (lambda x: x @ x, torch.ones(2, 2, dtype=torch.bool)),
        (torch.trace, torch.ones(2, 2, dtype=torch.bool)),
    ],
)
def test_errors(function, x):
    raises_alike(function, x)


@pytest.mark.parametrize("sizes", [(0, 0), (0, 3), (3, 0), (2, 0, 3), (0, 3, 2), (1, 1)], ids=str)
def test_sizes_of_nothing_and_one(sizes):
    x = rand(*sizes, grad=False)
    for function in (L.svdvals, lambda x: L.qr(x, mode="complete")[1], L.lu_factor_ex, L.pinv):
        check(function, x)
    if sizes[-1] == sizes[-2]:
        for function in (L.det, L.slogdet, L.cholesky_ex, L.inv_ex, L.eigvalsh, L.matrix_exp):
            check(function, x.abs())


def test_info_of_singular_matrices():
    batch = torch.stack([torch.eye(2), SINGULAR])
    for function in (L.inv_ex, L.lu_factor_ex):
        assert function(batch.to("xla")).info.tolist() == [0, 2]


@pytest.mark.parametrize("upper", [False, True])
def test_partial_cholesky_factor(upper):
    x = torch.tensor([[4.0, 2, 3], [2, -5, 1], [3, 1, 7]])
    check(L.cholesky_ex, torch.stack([x, torch.eye(3), x + 9 * torch.eye(3)]), upper=upper)


def test_eigh_reads_one_triangle():
    x = torch.tensor([[2.0, NAN], [1, 3]])
    close(L.eigvalsh(x.to("xla")), L.eigvalsh(x))
    close(L.eigvalsh(x.mT.to("xla"), UPLO="U"), L.eigvalsh(x.mT, UPLO="U"))


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_gradients_whatever_the_strides(dtype, strided):
    # torch's formulas go by the strides: whose LU was saved depends on them
    base = torch.randn(2, 4, 4, dtype=dtype)
    x = (base.mT if strided else base).requires_grad_()
    for function in (L.det, lambda x: L.slogdet(x)[1], L.inv, lambda x: L.solve(x, x.new_ones(4, 2))):
        there = x.detach().to("xla").requires_grad_()
        assert there.stride() == x.stride()
        for leaf in (x, there):
            leaf.grad = None
            function(leaf).abs().sum().backward()
        close(there.grad, x.grad, 1e-9)


@pytest.mark.parametrize("driver", ["gels", "gelsy", "gelsd", "gelss"])
@pytest.mark.parametrize(("a", "b"), [((4, 2), (4, 3)), ((2, 4), (2, 3)), ((3, 4, 2), (3, 4))])
def test_least_squares(driver, a, b):
    check(L.lstsq, rand(*a, grad=False), rand(*b, grad=False), driver=driver, tolerance=1e-4)


@pytest.mark.parametrize("driver", ["gels", "gelsy", "gelsd"])
@pytest.mark.parametrize(("a", "b"), [((1, 4, 2), (3, 4, 2)), ((1, 4, 2), (4, 4)), ((1, 1, 4, 2), (4, 4, 4))])
def test_least_squares_of_batches_of_one(driver, a, b):
    """Torch takes the sizes of the last two from vectors, and the numbers from matrices."""
    check(L.lstsq, rand(*a, grad=False), rand(*b, grad=False), driver=driver, tolerance=1e-4)


@pytest.mark.parametrize("driver", ["gelsy", "gelsd"])
def test_least_squares_without_full_rank(driver):
    check(L.lstsq, torch.tensor([[1.0, 0], [0, 0], [0, 0]]), torch.ones(3, 2), driver=driver)


@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 30.0, 1e5, 1e30])
def test_matrix_exp_of_any_norm(scale):
    rotation = torch.tensor([[0.0, -1], [1, 0]], dtype=torch.float64)
    batch = torch.stack([-scale * torch.eye(2, dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64)])
    check(L.matrix_exp, batch)
    if scale < 1e4:
        check(L.matrix_exp, scale * rotation, tolerance=1e-11)
    assert L.matrix_exp(torch.full((2, 2), NAN, device="xla")).isnan().all()


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, 3.0, INF])
def test_cdist_of_nans_and_of_equal_rows(p):
    x = torch.tensor([[0.0, NAN, 5], [1, 2, 3]])
    check(torch.cdist, x, torch.tensor([[0.0, 1, 2], [1, 2, 3]]), p=p)
    check(torch.cdist, x[1:].clone().requires_grad_(), torch.tensor([[0.0, 1, 2], [1, 2, 3]]).requires_grad_(), p=p)


def test_factors_of_products():
    nans, ones = torch.full((2, 2), NAN), torch.ones(2, 2)
    check(torch.addmm, nans, ones, ones, beta=0)
    check(torch.addmm, ones, nans, ones, alpha=0)
    check(torch.addmv, ones[0], nans, ones[0], alpha=0)
    check(torch.baddbmm, ones[None], nans[None], ones[None], alpha=0)  # here the nans count
    check(torch.addmm, ones, torch.ones(2, 0), torch.ones(0, 2), beta=3)
    whole = torch.full((2, 2), 200, dtype=torch.uint8)
    for function in (torch.addmm, torch.addr):
        rest = (whole[0], whole[0]) if function is torch.addr else (whole, whole)
        check(function, whole, *rest, beta=200, alpha=3)
    check(torch.addbmm, whole, whole[None], whole[None])
    check(torch._int_mm, torch.full((2, 2), 100, dtype=torch.int8), torch.full((2, 2), 100, dtype=torch.int8))


# ---- precision


@pytest.fixture
def _restored():
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def _products() -> list:
    """What XLA is asked for: the precision of every call of mm that there is."""
    found = registry.lookup(torch.ops.aten.mm.default)
    assert found is not None
    return [level for key in found.calls for level in key if isinstance(level, str)]


@pytest.mark.usefixtures("_restored")
def test_precision_is_part_of_a_call():
    assert precision.level() == "highest"
    x = torch.randn(7, 7, device="xla")
    made = []
    for level in ("highest", "high", "medium", "highest"):
        torch.set_float32_matmul_precision(level)
        before = len(_products())
        x @ x
        made.append(len(_products()) - before)
    assert made == [1, 1, 1, 0]
    assert {"highest", "high", "medium"} <= set(_products())


@pytest.mark.usefixtures("_restored")
def test_a_call_keeps_the_precision_that_it_was_recorded_under():
    operator = registry.lookup(torch.ops.aten.mm.default)
    assert operator is not None
    seen = []
    lowering = operator.lowering
    operator.lowering = lambda *args: (seen.append(precision.of(torch.zeros(0).numpy().dtype)), lowering(*args))[1]
    try:
        torch.set_float32_matmul_precision("medium")
        y = torch.randn(6, 6, device="xla") @ torch.randn(6, 6, device="xla")
        torch.set_float32_matmul_precision("highest")
        y.cpu()
    finally:
        operator.lowering = lowering
    assert [str(level) for level in seen] == ["DEFAULT"]


@pytest.mark.usefixtures("_restored")
def test_xlas_names_of_the_precision():
    for theirs, ours in (("default", "medium"), ("high", "high"), ("highest", "highest")):
        precision.set_mat_mul_precision(theirs)
        assert precision.get_mat_mul_precision() == theirs
        assert torch.get_float32_matmul_precision() == ours
    with pytest.raises(ValueError, match="precision must be"):
        precision.set_mat_mul_precision("medium")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "name", ["mm", "bmm", "addmm", "convolution", "convolution_backward", "_scaled_dot_product_flash_attention_for_cpu"]
)
def test_operators_that_multiply_say_so(name):
    operator = registry.lookup(getattr(torch.ops.aten, name).default)
    assert operator is not None
    assert operator.products


def test_float32_products_are_float32():
    x, y = rand(64, 256, dtype=torch.float64, grad=False), rand(256, 64, dtype=torch.float64, grad=False)
    for function in (torch.matmul, lambda x, y: F.conv1d(x[None], y.mT[:, :64, None])):
        x_, y_ = (x, y) if function is torch.matmul else (x, y[:, :64].mT.contiguous().mT)
        exact = function(x_, y_)
        got = function(x_.float().to("xla"), y_.float().to("xla")).cpu().double()
        assert (got - exact).abs().max() < 1e-4


@pytest.mark.parametrize("shape", [(3, 2), (2, 3), (2, 3, 2)])
def test_gels_of_zeros(shape):
    """LAPACK takes a matrix of zeros for solved, and no other without full rank."""
    b = torch.ones(*shape[:-1], 1)
    found = torch.linalg.lstsq(torch.zeros(shape, device="xla"), b.to("xla"), driver="gels")
    expected = torch.linalg.lstsq(torch.zeros(shape), b, driver="gels")
    assert torch.equal(found.solution.cpu(), expected.solution)
    assert torch.equal(found.residuals.cpu(), expected.residuals)
    one = torch.zeros(shape)
    one[..., 0, 0] = 1
    with pytest.raises(torch.linalg.LinAlgError):
        torch.linalg.lstsq(one.to("xla"), b.to("xla"), driver="gels").solution.cpu()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_eigh_of_nan(size):
    x = torch.full((size, size), float("nan"))
    for function in (torch.linalg.eigh, torch.linalg.eigvalsh):
        if size > 2:
            with pytest.raises(torch.linalg.LinAlgError):
                function(x)
            with pytest.raises(torch.linalg.LinAlgError):
                torch.utils._pytree.tree_map(torch.Tensor.cpu, function(x.to("xla")))
        else:
            values = torch.utils._pytree.tree_leaves(function(x.to("xla")))[0]
            assert values.cpu().isnan().all()
