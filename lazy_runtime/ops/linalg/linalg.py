"""Factorizations of matrices, each for a batch of them: LU, Cholesky, QR, eigenvalues, singular values.

All are jax's: LAPACK on the CPU, the vendor's library on GPUs, XLA's own programs on TPUs. An `info` is what LAPACK
says of each matrix: 0, or what is wrong with it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax.lax import linalg

from ...compat.torch import OpOverload
from ...lowering import checks
from ...lowering.argmax import argmax
from .. import host_call
from ..gradients import hermitian
from ..registry import op
from ..training import asserts

aten = torch.ops.aten


def adjoint(x):
    """The conjugate transpose of each matrix."""
    return jnp.conj(x.mT)


def _column_major(x: torch.Tensor) -> torch.Tensor:
    """A meta tensor like `x` whose matrices are in column-major order, as LAPACK's are."""
    return x.new_empty(x.mT.shape).mT


# ---- LU


def lu_factor(x):
    """LU in one matrix, pivots (int32, from 1), info (number of the first zero on U's diagonal), and the permutation
    for which x[permutation] = L U.
    """
    if not x.size and x.dtype.itemsize == 2:  # XLA factors no 16-bit floats, which do not matter here
        factors, *others = lu_factor(x.astype(jnp.float32))
        return factors.astype(x.dtype), *others
    factors, pivots, permutation = linalg.lu(x)
    return factors, pivots + 1, first_true(jnp.diagonal(factors, axis1=-2, axis2=-1) == 0), permutation


def first_true(wrong):
    """Number from 1 of the first that is true along the last axis, or 0; int32."""
    if wrong.shape[-1] == 0:
        return jnp.zeros(wrong.shape[:-1], jnp.int32)
    return jnp.where(wrong.any(-1), argmax(wrong, -1) + 1, 0).astype(jnp.int32)


def lower_and_upper(factors):
    """L and U from LU."""
    rows, columns = factors.shape[-2:]
    inner = min(rows, columns)
    lower = jnp.tril(factors[..., :, :inner], -1) + jnp.eye(rows, inner, dtype=factors.dtype)
    return lower, jnp.triu(factors[..., :inner, :])


def _permutation_matrix(permutation, dtype):
    """P for which P x = L U, transposed: torch's P is the one in x = P L U."""
    size = permutation.shape[-1]
    return (permutation[..., None, :] == jnp.arange(size)[:, None]).astype(dtype)


def _pivoted_only(target: OpOverload) -> Any:
    def infer(x: torch.Tensor, *, pivot: bool = True, **options: Any) -> Any:
        if not pivot and x.is_meta:
            raise RuntimeError("LU without pivoting is not implemented")  # the CPU kernel has its own words for it
        return target(x, pivot=pivot, **options)

    return infer


@op("aten::linalg_lu_factor_ex", fallible=True, infer=_pivoted_only(aten.linalg_lu_factor_ex.default))
def linalg_lu_factor_ex(x, *, pivot=True, check_errors=False):
    factors, pivots, info, _ = lu_factor(x)
    if check_errors:
        require_info(info, "torch.linalg.lu_factor_ex")
    return factors, pivots, info


def require_info(info, name: str) -> None:
    """The program fails with torch's error unless every info is 0."""
    asserts._linalg_check_errors(info, name, is_matrix=info.ndim == 0)


@op("aten::linalg_lu", infer=_pivoted_only(aten.linalg_lu.default))
def linalg_lu(x, *, pivot=True):
    factors, _, _, permutation = lu_factor(x)
    return _permutation_matrix(permutation, x.dtype), *lower_and_upper(factors)


def require_pivots(pivots, rows: int, low: str, high: str) -> None:
    """The program fails with one of two messages unless all pivots are in [1, rows]."""
    if pivots.size:
        checks.require(pivots.min() >= 1, lambda _: RuntimeError(low))
        checks.require(pivots.max() <= rows, lambda _: RuntimeError(high))


_PIVOTS = (
    "pivots passed to lu_unpack must be between 1 and LU.size(-2) inclusive."
    "Did you properly pass the result of lu_factor?"
)


@op("aten::lu_unpack", fallible=True)
def lu_unpack(factors, pivots, unpack_data=True, unpack_pivots=True):
    p = lower = upper = jnp.zeros(0, factors.dtype)
    if unpack_pivots:
        require_pivots(pivots, factors.shape[-2], _PIVOTS, _PIVOTS)
        p = _permutation_matrix(linalg.lu_pivots_to_permutation(pivots - 1, factors.shape[-2]), factors.dtype)
    if unpack_data:
        lower, upper = lower_and_upper(factors)
    return p, lower, upper


# ---- Cholesky


def cholesky_factor(x, upper: bool):
    """The triangular factor, and info: the order of the first leading minor that is not positive."""
    if x.size == 0:
        return x, jnp.zeros(x.shape[:-2], jnp.int32)
    x = hermitian(x, upper)
    lower = linalg.cholesky(x, symmetrize_input=False)
    failed = jnp.isnan(jnp.diagonal(lower, axis1=-2, axis2=-1)).any(-1)

    def diagnosed():
        partial, info = _cholesky_until_it_fails(x)
        return jnp.where(failed[..., None, None], partial, lower), jnp.where(failed, info, 0)

    def passed():
        return lower, jnp.zeros(failed.shape, jnp.int32)

    found, info = jax.lax.cond(failed.any(), diagnosed, passed)
    found = jnp.tril(found)
    return adjoint(found) if upper else found, info


def _cholesky_until_it_fails(x):
    """The factor column by column, as LAPACK leaves it, and at which column it stopped: jax says only that it did."""
    size = x.shape[-1]
    rows = jnp.arange(size)

    def column(number, state):
        x, info = state
        before = jnp.where(rows < number, x, 0)  # the columns that are done
        this = jnp.conj(jax.lax.dynamic_index_in_dim(before, number, -2, keepdims=False))
        rest = jax.lax.dynamic_index_in_dim(x, number, -1, keepdims=False)
        rest = rest - jnp.einsum("...ij,...j->...i", before, this, precision="highest")
        pivot = jax.lax.dynamic_index_in_dim(rest, number, -1).real
        fails = (info == 0) & ~(pivot[..., 0] > 0)
        made = jnp.where(rows == number, jnp.sqrt(pivot), rest / jnp.sqrt(pivot))
        left = jax.lax.dynamic_index_in_dim(x, number, -1, keepdims=False)
        made = jnp.where(fails[..., None], jnp.where(rows == number, pivot, left), made)
        use = (rows >= number) & (info == 0)[..., None]
        x = jnp.where((rows == number) & use[..., None], made[..., None].astype(x.dtype), x)
        return x, jnp.where(fails, number + 1, info).astype(jnp.int32)

    return jax.lax.fori_loop(0, size, column, (x, jnp.zeros(x.shape[:-2], jnp.int32)))


@op("aten::linalg_cholesky_ex", fallible=True)
def linalg_cholesky_ex(x, *, upper=False, check_errors=False):
    factor, info = cholesky_factor(x, upper)
    if check_errors:
        require_info(info, "linalg.cholesky_ex")
    return factor, info


@op("aten::cholesky", fallible=True)
def cholesky(x, upper=False):
    factor, info = cholesky_factor(x, upper)
    require_info(info, "cholesky")
    return factor


# ---- QR


@op("aten::linalg_qr")
def linalg_qr(x, mode="reduced"):
    if mode == "r":
        return jnp.zeros(0, x.dtype), jnp.linalg.qr(x, mode="r")
    return linalg.qr(x, full_matrices=mode == "complete")


def _infer_geqrf(x: torch.Tensor) -> Any:
    """Torch has no meta kernel. What it refuses it refuses on the CPU, where `dispatch.infer` asks for its words."""
    if not x.is_meta:
        return aten.geqrf.default(x)
    if x.ndim < 2 or x.dtype not in (torch.float32, torch.float64, torch.complex64, torch.complex128):
        raise RuntimeError("geqrf takes no such tensor")
    return _column_major(x), x.new_empty(*x.shape[:-2], min(x.shape[-2:]))


@op("aten::geqrf", infer=_infer_geqrf)
def geqrf(x):
    reflectors, tau = jnp.linalg.qr(x, mode="raw")
    return reflectors.mT, tau


@op("aten::linalg_householder_product")
def linalg_householder_product(reflectors, tau):
    return linalg.householder_product(reflectors, tau)


@op("aten::ormqr")
def ormqr(reflectors, tau, x, left=True, transpose=False):
    return linalg.ormqr(reflectors, tau, x, left=left, transpose=transpose)


# ---- eigenvalues


def eigh(x, uplo: str = "L"):
    """Eigenvalues (ascending) and eigenvectors from one triangle of Hermitian matrices."""
    vectors, values = linalg.eigh(hermitian(x, uplo in "Uu"), symmetrize_input=False)
    if x.size and x.shape[-1] > 2:  # LAPACK needs no iteration for smaller ones, and gives their nans
        # jax gives nans where LAPACK gives up, and does not say which code it gave up with
        info = jnp.isnan(values).any(-1) & ~jnp.isinf(x).any((-2, -1))
        require_info(info.astype(jnp.int32), "linalg.eigh")
    return values, vectors


@op("aten::_linalg_eigh", fallible=True)
def _linalg_eigh(x, uplo="L", compute_v=True):
    values, vectors = eigh(x, uplo)
    return values, vectors if compute_v else jnp.zeros(0, x.dtype)


def _infer_eig(x: torch.Tensor) -> Any:
    values, vectors = aten.linalg_eig.default(x)
    return values, _column_major(vectors)


def _require_finite(x) -> None:
    message = "torch.linalg.eig: input tensor should not contain infs or NaNs."
    checks.require(jnp.isfinite(x).all(), lambda _: RuntimeError(message))


@op("aten::linalg_eig", fallible=True, infer=_infer_eig)
def linalg_eig(x, *, out):
    _require_finite(x)
    if out[0].device.platform == "tpu":  # jax has none there
        return host_call.on_host(aten.linalg_eig.default, [x], [spec.struct() for spec in out])
    values, vectors = linalg.eig(x, compute_left_eigenvectors=False)
    return values, vectors


@op("aten::_linalg_eigvals", fallible=True)
def _linalg_eigvals(x, *, out):
    _require_finite(x)
    if out.device.platform == "tpu":
        return host_call.on_host(aten._linalg_eigvals.default, [x], [out.struct()])[0]
    (values,) = linalg.eig(x, compute_left_eigenvectors=False, compute_right_eigenvectors=False)
    return values


# ---- singular values


def svd(x, full: bool = False, name: str = "linalg.svd"):
    """U, S (descending), and V's adjoint."""
    u, s, vh = linalg.svd(x, full_matrices=full, compute_uv=True)
    require_converged(x, s, name)
    return u, s, vh


def require_converged(x, s, name: str = "linalg.svd") -> None:
    """The program fails with torch's error where there are no singular values."""
    if x.size:
        # LAPACK's code for a nan in its argument; jax does not say which code it gave up with otherwise
        info = jnp.where(jnp.isnan(s).any(-1) & ~jnp.isinf(x).any((-2, -1)), 1, 0)
        require_info(jnp.where(jnp.isnan(x).any((-2, -1)), -4, info).astype(jnp.int32), name)


def _infer_svd(x: torch.Tensor, full_matrices: bool = False, compute_uv: bool = True, **options: Any) -> Any:
    if x.is_meta and options.get("driver") is not None:
        raise RuntimeError("CPUs have one driver")  # the CPU kernel has its own words for it
    u, s, vh = aten._linalg_svd.default(x, full_matrices, compute_uv, **options)
    return u, s, _column_major(vh) if compute_uv else vh


@op("aten::_linalg_svd", fallible=True, infer=_infer_svd)
def _linalg_svd(x, full_matrices=False, compute_uv=True, *, driver=None):
    if compute_uv:
        return svd(x, full_matrices)
    s = linalg.svd(x, full_matrices=False, compute_uv=False)
    require_converged(x, s)
    empty = jnp.zeros(0, x.dtype)
    return empty, s, empty
