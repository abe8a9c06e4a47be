"""Rows that fail, and why that holds. They are run like all others; one that passes has to go from here."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from .rows import FUNCTION, Row


@dataclasses.dataclass(frozen=True)
class Expected:
    """Some rows and the reason why they fail; empty for all of a kind.

    Args:
        entries: a regular expression over the whole name of an entry.
    """

    reason: str
    entries: str
    database: str = "op_db"
    directions: Sequence[str] = ()
    dtypes: Sequence[str] = ()
    roads: Sequence[str] = ()

    def takes(self, row: Row) -> bool:
        return (
            row.database == self.database
            and (not self.directions or row.direction in self.directions)
            and (not self.dtypes or row.dtype in self.dtypes)
            and (not self.roads or row.road in self.roads)
            and re.fullmatch(self.entries, row.entry) is not None
        )


#: Operators of which torch's own kernel for the CPU is wrong, and how: here the formula's numbers are right, and a
#: difference from eager is torch's. Each has a test of the formula.
TORCH_IS_WRONG: dict[str, str] = {
    "native_batch_norm_backward": (
        "of one image, as in instance norm, with a gradient whose strides are ambiguous (after "
        "`flatten(2).transpose(1, 2)`: (2, 1, 6, 2) for `x` of (1, 2, 2, 3)), the elements of the gradient are read in "
        "another order (torch 2.13). `tests/lazy_runtime/ops/nn/test_norm.py`"
    ),
    "hardsigmoid_backward": (
        "of float64, the factor 1/6 is rounded to float32: 3e-8 of the gradient. "
        "`tests/lazy_runtime/ops/elementwise/test_pointwise.py`"
    ),
}

_ON_XLA = ("lazy", "eager", "compile")
_COMPILED = ("compile", "host")
_WIDE = "results of 64 bits, which jax has with `jax_enable_x64` alone: with it they pass"
_SPARSE = "sparse layouts: XLA's tensors are dense"

EXPECTED: list[Expected] = [
    Expected(
        _SPARSE,
        "sparse_sampled_addmm|sparse_mm_reduce",
        directions=("forward", "backward", "errors", "layouts"),
        roads=_ON_XLA,
    ),
    Expected(
        "the gradient is sparse on plain tensors, and the runner compares dense ones",
        "sparse_mm_reduce",
        directions=("backward",),
        roads=("host",),
    ),
    Expected("complex32: XLA has no such dtype", "chalf", directions=("forward", "backward", "limits", "layouts")),
    Expected("complex32: XLA has no such dtype", "complex|view_as_complex", dtypes=("float16",)),
    Expected(
        "which of equal elements gets the gradient is nobody's promise, and the samples in 16 bits have equal ones",
        "sort|msort|mode",
        directions=("backward",),
        dtypes=("bfloat16", "float16"),
    ),
    Expected(
        "which of equal elements gets the gradient is nobody's promise, and the samples in bfloat16 have equal ones",
        "topk",
        directions=("backward",),
        dtypes=("bfloat16",),
    ),
    Expected(
        "the samples reach 10,000, whose rounding to float32 the gradient's exp makes 1e-3 of, on the CPU as here",
        "logcumsumexp",
        directions=("backward",),
        dtypes=("float32", "complex64"),
    ),
    Expected(
        "along a dimension of one element the gradient is a difference of equal terms, whose rounding bfloat16 leaves",
        "nn_functional_normalize",
        directions=("backward",),
        dtypes=("bfloat16",),
    ),
    Expected(
        "torch's functionalization of it gives the results to the arguments that it writes to in another order",
        "_native_batch_norm_legit",
        directions=("out", "strided_out"),
    ),
    Expected(
        "torch's kernel for the gradient has 1/6 in float32",
        "nn_functional_hardsigmoid",
        directions=("backward",),
        dtypes=("float64",),
    ),
    Expected(
        "as_strided beyond an argument of a compiled graph reads memory that the argument does not show",
        "as_strided_partial_views",
        directions=("forward",),
        roads=_COMPILED,
    ),
    Expected(
        "as_strided beyond an argument of a compiled graph reads memory that the argument does not show",
        "as_strided_partial_views",
        directions=("backward",),
        roads=("host",),
    ),
    Expected(
        "Dynamo takes it apart, and the parts' results are rounded to 16 bits, with any backend",
        "addcdiv",
        directions=("forward",),
        dtypes=("bfloat16",),
        roads=_COMPILED,
    ),
    Expected(
        "the CPU's kernel for bfloat16 refuses some out= that are in another order of memory",
        "matmul|nn_functional_linear",
        directions=("strided_out",),
        dtypes=("bfloat16",),
    ),
    Expected(
        "the indices are read, and the sizes of the results depend on them: not in one graph",
        "tensor_split",
        directions=("forward", "backward"),
        roads=_COMPILED,
    ),
    Expected(
        "of a part of a tensor it writes to memory that the part does not show",
        "as_strided_scatter",
        directions=("layouts",),
    ),
    Expected(
        "the CPU's kernel reads weights of other strides as if they were contiguous",
        "native_group_norm",
        directions=("layouts",),
    ),
    Expected(
        "a difference of distances of 60,000, whose rounding to float32 is 1e-3 of it",
        "nn_functional_triplet_margin(_with_distance)?_loss",
        directions=("limits",),
        dtypes=("int16",),
    ),
    Expected("Dynamo has no sparse tensors in its graphs, with any backend", "to_sparse", roads=("compile",)),
    # ---- through jax
    Expected(
        "a size depends on data, or a value is read: jax traces the function once",
        "allclose|argwhere|combinations|cov|equal|item|linalg_lstsq(_grad_oriented)?|masked_select|narrow|"
        "nn_functional_gaussian_nll_loss|nonzero|"
        "repeat_interleave|tensor_split|to_sparse|unique|unique_consecutive",
        roads=(FUNCTION,),
    ),
    Expected(_SPARSE, "sparse_sampled_addmm|sparse_mm_reduce", roads=(FUNCTION,)),
    Expected(
        _WIDE,
        "(log_)?softmax_with_dtype|nn_functional_softmin_with_dtype",
        roads=(FUNCTION,),
    ),
    Expected(
        _WIDE,
        "float_power|full_like|new_full|hash_tensor",
        directions=("forward",),
        roads=(FUNCTION,),
    ),
    Expected(
        "torch wants int32, as which int64 counts without `jax_enable_x64`: with it they pass",
        "lu_unpack|lu_solve|linalg_lu_solve",
        roads=(FUNCTION,),
    ),
    Expected("jax has tuples in place of torch.Size", "broadcast_shapes", roads=(FUNCTION,)),
    Expected(
        "as_strided beyond an argument reads memory that the argument does not show",
        "as_strided_partial_views",
        roads=(FUNCTION,),
    ),
    Expected(
        "torch's gradient passes what is overwritten through, too",
        "as_strided_scatter",
        directions=("backward",),
        roads=(FUNCTION,),
    ),
    Expected(
        "torch has a gradient for the triangle that is not read, too",
        "cholesky_inverse|cholesky_solve",
        directions=("backward",),
        roads=(FUNCTION,),
    ),
    Expected(
        "jax does not differentiate it",
        "linalg_eig|linalg_eigvals|linalg_householder_product|linalg_svd|ormqr|svd",
        directions=("backward",),
        roads=(FUNCTION,),
    ),
    Expected(
        "the rounding of the gradient of a QR decomposition; in float64 it agrees to 1e-15",
        "linalg_lstsq(_grad_oriented)?",
        directions=("backward",),
        roads=(FUNCTION,),
    ),
    Expected(
        "of zeros, the gradient of a norm of negative order is nan",
        "linalg_norm_subgradients_at_zero",
        directions=("backward",),
        roads=(FUNCTION,),
    ),
]


def reason(row: Row) -> str | None:
    """Why the row fails; None for one that passes."""
    return next((expected.reason for expected in EXPECTED if expected.takes(row)), None)
