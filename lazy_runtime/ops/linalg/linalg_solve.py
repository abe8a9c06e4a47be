"""Systems of linear equations, and what is computed by solving them: inverses, determinants, least squares."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax.lax import linalg

from ..gradients import with_gradient
from ..registry import op
from .linalg import adjoint, eigh, first_true, lu_factor, require_info, require_pivots, svd
from .matmul import exact_product

aten = torch.ops.aten


def _broadcast(x, y):
    """Two batches of matrices as one batch of pairs."""
    batch = jnp.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    return jnp.broadcast_to(x, batch + x.shape[-2:]), jnp.broadcast_to(y, batch + y.shape[-2:])


def _is_vectors(a_shape, b_shape) -> bool:
    """Whether the right-hand side is one vector of each matrix, by torch's rule."""
    return len(b_shape) == 1 or (len(a_shape) - 1 == len(b_shape) and tuple(a_shape[:-1]) == tuple(b_shape))


# ---- triangular


def solve_triangular(a, b, *, upper: bool, left: bool = True, unit: bool = False, transpose: bool = False):
    """x for which a x = b (or x a = b), the batches broadcast."""
    a, b = _broadcast(a, b)
    return linalg.triangular_solve(
        a, b, left_side=left, lower=not upper, unit_diagonal=unit, transpose_a=transpose, conjugate_a=False
    )


@op("aten::linalg_solve_triangular")
def linalg_solve_triangular(a, b, *, upper, left=True, unitriangular=False):
    return solve_triangular(a, b, upper=upper, left=left, unit=unitriangular)


@op("aten::triangular_solve")
def triangular_solve(b, a, upper=True, transpose=False, unitriangular=False):
    solution = solve_triangular(a, b, upper=upper, unit=unitriangular, transpose=transpose)
    return solution, _broadcast(a, b)[0]


@op("aten::cholesky_solve")
def cholesky_solve(b, factor, upper=False):
    lower = adjoint(factor) if upper else factor
    return solve_triangular(adjoint(lower), solve_triangular(lower, b, upper=False), upper=True)


@op("aten::cholesky_inverse", fallible=True)
def cholesky_inverse(factor, upper=False):
    zero = jnp.diagonal(factor, axis1=-2, axis2=-1) == 0
    if zero.size:
        require_info(first_true(zero), "cholesky_inverse")
    return cholesky_solve(jnp.eye(factor.shape[-1], dtype=factor.dtype), factor, upper)


# ---- by LU


def lu_solve(factors, permutation, b, adjointed: bool = False):
    """x for which a x = b (or a's adjoint times x), from a[permutation] = L U; the batches broadcast."""
    factors, b = _broadcast(factors, b)
    permutation = jnp.broadcast_to(permutation, b.shape[:-1])[..., None]
    if not adjointed:
        y = solve_triangular(factors, jnp.take_along_axis(b, permutation, -2), upper=False, unit=True)
        return solve_triangular(factors, y, upper=True)
    factors = adjoint(factors)
    y = solve_triangular(factors, solve_triangular(factors, b, upper=False), upper=True, unit=True)
    return jnp.take_along_axis(y, jnp.argsort(permutation, -2), -2)


@op("aten::linalg_lu_solve", fallible=True)
def linalg_lu_solve(factors, pivots, b, *, left=True, **options):
    rows = factors.shape[-2]
    ending = "Did you properly pass the result of lu_factor?"
    require_pivots(
        pivots,
        rows,
        f"Pivots given to lu_solve must all be greater or equal to 1. {ending}",
        f"Pivots given to lu_solve must all be smaller or equal to LU.size(-2). {ending}",
    )
    permutation = linalg.lu_pivots_to_permutation(pivots - 1, rows)
    solve = lu_solve if left else _solve_from_the_right
    return solve(factors, permutation, b, options.get("adjoint", False))


@op("aten::_linalg_solve_ex", fallible=True)
def _linalg_solve_ex(a, b, *, left=True, check_errors=False):
    factors, pivots, info, permutation = lu_factor(a)
    if check_errors:
        require_info(info, "torch.linalg.solve_ex")
    vectors = _is_vectors(a.shape, b.shape)
    b = b[..., None] if vectors else b
    x = lu_solve(factors, permutation, b) if left else _solve_from_the_right(factors, permutation, b)
    return x[..., 0] if vectors else x, factors, pivots, info


def _solve_from_the_right(factors, permutation, b, adjointed: bool = False):
    """x for which x a = b (or x times a's adjoint)."""
    return adjoint(lu_solve(factors, permutation, adjoint(b), not adjointed))


@op("aten::linalg_inv_ex", fallible=True)
def linalg_inv_ex(a, *, check_errors=False):
    factors, _, info, permutation = lu_factor(a)
    if check_errors:
        require_info(info, "linalg.inv_ex")
    return lu_solve(factors, permutation, jnp.eye(a.shape[-1], dtype=a.dtype)), info


def _parity(pivots):
    """-1 for an odd number of exchanged rows."""
    moved = (pivots != jnp.arange(1, pivots.shape[-1] + 1)).sum(-1)
    return 1 - 2 * (moved % 2)


def _lu_factor(a, spec):
    """LU and pivots; of real contiguous matrices those of the transposed ones, as torch has it: its backward formulas
    go by these strides too.
    """
    transposed = spec.is_contiguous and not spec.dtype.is_complex
    factors, pivots, *_ = lu_factor(a.mT if transposed else a)
    return factors, pivots


@op("aten::_linalg_det")
def _linalg_det(a, *, input_spec):
    factors, pivots = _lu_factor(a, input_spec)
    diagonal = jnp.diagonal(factors, axis1=-2, axis2=-1)
    return jnp.prod(diagonal, -1) * _parity(pivots).astype(a.dtype), factors, pivots


@op("aten::_linalg_slogdet")
def _linalg_slogdet(a, *, input_spec):
    factors, pivots = _lu_factor(a, input_spec)
    diagonal = jnp.diagonal(factors, axis1=-2, axis2=-1)
    sign = jnp.prod(jnp.sign(diagonal), -1) * _parity(pivots).astype(a.dtype)
    return sign, jnp.log(jnp.abs(diagonal)).sum(-1), factors, pivots


# ---- by singular values


@op("aten::linalg_pinv.atol_rtol_tensor", fallible=True)
def linalg_pinv(a, *, atol=None, rtol=None, hermitian=False, out):
    if a.size == 0:
        return jnp.zeros(out.shape, a.dtype)
    inverse = jax.lax.stop_gradient(_pinv(a, atol, rtol, hermitian))  # checked, which no `with_gradient` may be
    return with_gradient(lambda _, inverse: inverse, _pinv_gradient)(a, inverse)


def _pinv_gradient(cotangent, _, a, inverse):
    """Golub and Pereyra, The differentiation of pseudo-inverses and nonlinear least squares problems, 1973."""
    adjoint_of_inverse, g = adjoint(inverse), adjoint(cotangent)
    product = functools.partial(functools.reduce, exact_product)
    rows = jnp.eye(a.shape[-2], dtype=a.dtype) - exact_product(a, inverse)
    columns = jnp.eye(a.shape[-1], dtype=a.dtype) - exact_product(inverse, a)
    through = product([adjoint_of_inverse, cotangent, adjoint_of_inverse])
    left = product([rows, g, inverse, adjoint_of_inverse])
    right = product([adjoint_of_inverse, inverse, g, columns])
    return (left + right - through,)


def _pinv(a, atol, rtol, hermitian):
    if hermitian:
        values, vectors = eigh(a)
        left, right = vectors, adjoint(vectors)
        size = jnp.abs(values)
    else:
        u, values, vh = svd(a)
        left, right = adjoint(vh), adjoint(u)
        size = values
    bound = _bound(a, size, atol, rtol)
    inverse = jnp.where(size > bound, 1 / values, 0).astype(a.dtype)
    return exact_product(left * inverse[..., None, :], right)


def _bound(a, size, atol, rtol):
    """Up to which size singular values count as zero: torch's rule for its default tolerances."""
    if rtol is None:
        rtol = jnp.asarray(jnp.finfo(a.dtype).eps * max(a.shape[-2:]), size.dtype)
        if atol is not None:
            rtol = jnp.where(atol > 0, 0, rtol)
    largest = size.max(-1, keepdims=True)
    relative = rtol[..., None].astype(size.dtype) * largest
    return relative if atol is None else jnp.maximum(atol[..., None].astype(size.dtype), relative)


# ---- least squares

WITH_VALUES = ("gelsd", "gelss")  # the drivers that give singular values


def _infer_lstsq(a: torch.Tensor, b: torch.Tensor, rcond: float | None = None, *, driver: str | None = None) -> Any:
    """Torch has no meta kernel. What it refuses it refuses on the CPU, where `dispatch.infer` asks for its words."""
    if not a.is_meta:
        return aten.linalg_lstsq.default(a, b, rcond, driver=driver)
    driver = driver or "gelsy"
    inexact = a.dtype in (torch.float32, torch.float64, torch.complex64, torch.complex128)
    if not inexact or a.dtype != b.dtype or a.ndim < 2 or b.ndim < 1 or a.ndim - b.ndim not in (0, 1):
        raise RuntimeError("linalg_lstsq takes no such tensors")
    vectors = _is_vectors(a.shape, b.shape)
    rows, columns = a.shape[-2:]
    right = 1 if vectors else b.shape[-1]
    if (b.shape[-1] if vectors else b.shape[-2]) != rows or driver not in ("gels", "gelsy", *WITH_VALUES):
        raise RuntimeError("linalg_lstsq takes no such sizes, or driver")
    # Torch takes the sizes of a batch from vectors wherever `b` has a dimension less, and the numbers from matrices.
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-1] if b.ndim < a.ndim else b.shape[:-2])
    memory = b.new_empty(*batch, right, max(rows, columns, 1))[..., :columns]  # LAPACK puts the solution in b's place
    solution = memory[..., 0, :] if vectors else memory.mT
    values = a.real if a.is_complex() else a
    overdetermined = rows > columns and driver in ("gels", *WITH_VALUES)
    residuals = values.new_empty((*batch, right) if overdetermined else 0)
    rank = a.new_empty(0 if driver == "gels" else a.shape[:-2], dtype=torch.int64)
    singular = values.new_empty((*a.shape[:-2], min(rows, columns)) if driver in WITH_VALUES else 0)
    return solution, residuals, rank, singular


@op("aten::linalg_lstsq", fallible=True, infer=_infer_lstsq)
def linalg_lstsq(a, b, rcond=None, *, driver=None, out):
    driver = driver or "gelsy"
    vectors = _is_vectors(a.shape, b.shape)
    a, b = _broadcast(a, b[..., None] if vectors else b)
    rank, singular = jnp.zeros(0, jnp.int64), jnp.zeros(0, a.real.dtype)
    if driver == "gels":
        x = _by_qr(a, b)
    else:
        x, rank, values = _by_singular_values(a, b, rcond)
        singular = values if driver in WITH_VALUES else singular
    batch = out[0].shape[:-1] if vectors else out[0].shape[:-2]
    a, b, x = (jnp.broadcast_to(y, (*batch, *y.shape[-2:])) for y in (a, b, x))
    rank, singular = (y[tuple(map(slice, of.shape))] for y, of in zip((rank, singular), out[2:], strict=True))
    residuals = jnp.zeros(out[1].shape, a.real.dtype)
    if residuals.size:
        residuals = jnp.square(jnp.abs(exact_product(a, x) - b)).sum(-2)
        if driver == "gels":  # which overwrites b where a is zeros
            residuals = jnp.where((a == 0).all((-2, -1))[..., None], 0, residuals)
    return x[..., 0] if vectors else x, residuals, rank, singular


def _by_qr(a, b):
    """The least squares solution, or if there are many the smallest, for matrices of full rank, or of zeros alone, for
    which LAPACK's gels gives zeros.
    """
    rows, columns = a.shape[-2:]
    q, r = linalg.qr(a if rows >= columns else adjoint(a), full_matrices=False)
    zero = jnp.diagonal(r, axis1=-2, axis2=-1) == 0
    nothing = (a == 0).all((-2, -1))
    if zero.size:
        zero = zero & ~nothing[..., None]
        require_info(first_true(zero), "torch.linalg.lstsq")
    if rows >= columns:
        x = solve_triangular(r, exact_product(adjoint(q), b), upper=True)
    else:
        x = exact_product(q, solve_triangular(adjoint(r), b, upper=False))
    return jnp.where(nothing[..., None, None], 0, x)


def _by_singular_values(a, b, rcond):
    """The smallest least squares solution, the rank, and the singular values."""
    if a.size == 0:
        size = min(a.shape[-2:])
        x = jnp.zeros((*a.shape[:-2], a.shape[-1], b.shape[-1]), b.dtype)
        return x, jnp.zeros(a.shape[:-2], jnp.int64), jnp.zeros((*a.shape[:-2], size), a.real.dtype)
    u, s, vh = svd(a, name="torch.linalg.lstsq")
    rcond = jnp.finfo(a.dtype).eps * max(a.shape[-2:]) if rcond is None else rcond
    counts = s > rcond * s[..., :1]
    inverse = jnp.where(counts, 1 / s, 0).astype(a.dtype)
    x = exact_product(adjoint(vh), inverse[..., None] * exact_product(adjoint(u), b))
    return x, counts.sum(-1).astype(jnp.int64), s
