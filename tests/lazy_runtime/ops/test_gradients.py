"""Gradients that jax takes of lowerings are torch's, where functions have corners and where formulas give nan."""

import warnings

import jax
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lazy_runtime.jax import function


class Called(torch.nn.Module):
    """The sum of what a function gives, each element with a weight of its own."""

    def __init__(self, called):
        super().__init__()
        self._called = called

    def forward(self, *tensors):
        found = self._called(*tensors)
        weights = torch.arange(1, 1 + found.numel(), dtype=found.dtype, device=found.device)
        return (found * weights.reshape(found.shape)).sum()


def check(called, *operands, rtol=1e-4):
    """Compares jax's gradients of all floating point operands with torch's on the CPU."""
    tensors = [torch.as_tensor(each) for each in operands]
    wanted = [place for place, each in enumerate(tensors) if each.is_floating_point()]
    for place in wanted:
        tensors[place].requires_grad_()
    expected = torch.autograd.grad(Called(called)(*tensors), [tensors[place] for place in wanted])
    _, pure = function(Called(called))
    arrays = [jax.numpy.asarray(each.detach().numpy()) for each in tensors]
    found = jax.jit(jax.grad(lambda *arrays: pure({}, *arrays), wanted))(*arrays)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other.numpy(), rtol=rtol, atol=1e-5)


CORNERS = np.array([-6, -3, -1, -0.5, -0.0, 0.0, 0.5, 1, 3, 6], np.float32)


@pytest.mark.parametrize(
    "called",
    [
        F.relu,
        F.relu6,
        F.hardtanh,
        F.hardswish,
        F.hardsigmoid,
        F.leaky_relu,
        F.elu,
        F.selu,
        F.celu,
        F.softshrink,
        F.hardshrink,
        torch.abs,
        torch.sign,
        torch.lgamma,
        torch.special.i0,
        torch.special.log_ndtr,
        lambda x: F.threshold(x, 0.5, 2.0),
        lambda x: x.clamp(-1, 1),
        lambda x: torch.maximum(x, torch.zeros_like(x)),
        lambda x: torch.fmin(x, torch.zeros_like(x)),
        lambda x: torch.copysign(x, x),
        lambda x: torch.atan2(x, x),
        lambda x: torch.pow(x.abs(), x.abs()),
        lambda x: torch.pow(0.0, x.abs()),
        lambda x: F.l1_loss(x, torch.zeros_like(x), reduction="none"),
        lambda x: F.smooth_l1_loss(x, torch.zeros_like(x), reduction="none"),
        lambda x: F.binary_cross_entropy(x.clamp(0, 1), torch.ones_like(x)),
        lambda x: torch.nextafter(x, torch.zeros_like(x)),
        lambda x: torch.median(x),
    ],
)
def test_corners(called):
    check(called, CORNERS.copy())


@pytest.mark.parametrize(
    "called",
    [
        lambda x: x.norm(),
        lambda x: x.norm(p=1),
        lambda x: x.norm(p=3),
        lambda x: x.std(),
        lambda x: F.normalize(x, dim=0),
        lambda x: F.cosine_similarity(x, x, dim=0),
        lambda x: torch.cdist(x[:, None], x[:, None]),
        lambda x: torch.cdist(x[:, None], x[:, None], p=1),
        lambda x: torch.cdist(x[:, None], x[:, None], p=3),
        lambda x: x.amax(),
        lambda x: x.max(0).values,
    ],
)
def test_of_zeros(called):
    check(called, np.zeros(10, np.float32))


def test_of_a_row_without_weights():
    """Attention in which one query may look at nothing."""
    scores = np.array([[0, 1, 2], [-np.inf, -np.inf, -np.inf]], np.float32)
    check(lambda x: torch.ops.aten._safe_softmax(x, -1), scores)


def test_of_products_with_zeros():
    source, index = np.array([2, 0, 3, 0, 0, 5], np.float32), np.array([0, 0, 1, 2, 2, 3])
    for own in ([1, 2, 3, 4, 5], [1, 2, 0, 4, 5]):
        given = np.array(own, np.float32)
        check(lambda x, s, i: x.scatter_reduce(0, i, s, "prod", include_self=False), given, source, index)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is new
            check(lambda x, s, i: x.index_reduce(0, i, s, "prod"), given, source, index)
    lengths = torch.tensor([2, 1, 3])
    check(lambda x, n: torch.segment_reduce(x, "prod", lengths=n), source, lengths)


def test_of_hermitian_matrices():
    """One triangle is read, and the gradient is of both."""
    x = np.random.default_rng(0).standard_normal((4, 4), np.float32)
    x = x @ x.T + 4 * np.eye(4, dtype=np.float32) + np.triu(x, 1)
    for upper in (False, True):
        check(lambda x: torch.linalg.cholesky(x, upper=upper), x, rtol=1e-3)  # noqa: B023
        check(lambda x: torch.linalg.eigvalsh(x, "U" if upper else "L"), x, rtol=1e-3)  # noqa: B023


def test_of_functions_of_matrices():
    x = np.random.default_rng(0).standard_normal((2, 4, 4), np.float32)
    check(torch.matrix_exp, x, rtol=1e-3)
    check(torch.linalg.pinv, x[..., :3], rtol=1e-3)
    check(torch.linalg.pinv, x[..., :2, :], rtol=1e-3)
    low = x[..., :1] @ x[..., :1, :]  # of rank one: singular values are equal
    check(lambda x: torch.linalg.pinv(x, rtol=1e-3), low, rtol=1e-3)


def test_of_ctc_loss():
    scores = np.random.default_rng(0).standard_normal((6, 2, 5), np.float32)
    targets = torch.tensor([[1, 2, 2], [3, 1, 0]])

    def loss(scores):
        scores = scores.log_softmax(-1)
        lengths = torch.tensor([6, 5]), torch.tensor([3, 2])
        return F.ctc_loss(scores, targets.to(scores.device), *lengths, reduction="none")

    check(loss, scores)


def test_of_max_unpooling():
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)

    def overlapping(x):
        found, places = F.max_pool2d(x, (2, 2), (1, 1), return_indices=True)
        return F.max_unpool2d(found, places * 0, (2, 2), (1, 1))

    check(overlapping, x)


def test_in_forward_mode():
    _, pure = function(Called(lambda x: torch.atan2(x, x) + F.relu(x) + x.abs() + torch.pow(x.abs(), x.abs())))
    _, tangent = jax.jvp(lambda x: pure({}, x), (CORNERS[:4],), (np.ones(4, np.float32),))
    (gradient,) = jax.vjp(lambda x: pure({}, x), CORNERS[:4])[1](np.float32(1))
    np.testing.assert_allclose(tangent, gradient.sum(), rtol=1e-5)


def test_under_vmap():
    """An operator with a gradient of its own, whose index is mapped over too."""
    _, pure = function(Called(lambda x, s, i: x.scatter_reduce(0, i, s, "prod")))
    generator = np.random.default_rng(0)
    x, source = generator.standard_normal((2, 3, 5), np.float32)
    index = generator.integers(0, 5, (3, 5))
    gradient = jax.grad(lambda *operands: pure({}, *operands), (0, 1))
    found = jax.vmap(gradient)(x, source, index)
    for row in range(3):
        for one, other in zip(found, gradient(x[row], source[row], index[row]), strict=True):
            np.testing.assert_allclose(one[row], other, rtol=1e-5)
