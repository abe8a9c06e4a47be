"""What torch's CPU kernels refuse although the meta kernels let it through: mostly dtypes, and arguments beyond their
domain. A call that was not seen before is made once on small CPU tensors, and what they raise is raised.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..compat.torch import OpOverload, has_computed_kernel, schema_of
from ..ir.spec import storage_size
from ..ops.probe import quietly

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..ir.spec import TensorSpec

#: Elements of all operands and results together up to which a kernel runs on the sizes themselves. More would take a
#: noticeable part of a millisecond, and wake torch's threads.
_SMALL = 1 << 15

#: What every size is cut to beyond that: equal sizes stay equal, and a window of usual size still fits.
_CUT = 8

#: Messages that depend neither on sizes nor on values. Others are believed where the sizes are the call's own and the
#: operator takes any values: those of the stand-ins are not the call's.
_OF_DTYPES = re.compile(
    r"not implemented for|not supported for|dtype|data type|scalar type|but got (scalar )?type|tensor type|result type"
    r"|floating.point|complex|integer|\bint\b|\bbool\b|boolean|Long\b|Float\b|Double\b"
)

#: The CPU's kernels lack 16-bit floats now and then, as no accelerator's do: XLA computes them.
_OF_SIXTEEN_BITS = re.compile(r"not implemented for '?(Half|BFloat16)|not supported for (Half|BFloat16)")

#: Operators that no library has for 16-bit floats: LAPACK's, and cuSOLVER's on GPUs.
_FACTORIZING = re.compile(
    r"linalg_(lu(_factor_ex)?|ldl_factor_ex|cholesky_ex|qr|eig|eigvals|eigh|svd|householder_product|det|slogdet"
    r"|solve_ex|inv_ex)\b|cholesky\b|ormqr\b"
)

#: Operators that refuse values: matrices, probabilities, bins, masks, divisors. Indices are not among them:
#: those of the stand-ins are 0, which is in range wherever any index is.
_VALUES = re.compile(
    r"linalg|cholesky|inverse|geqrf|multinomial|bernoulli|poisson|binomial|_gamma|dirichlet|hist"
    r"|repeat_interleave|_amp_|masked_scatter|index_put|fractional|unpool"
    r"|div|mod|remainder"
)

#: Operators whose CPU kernels read beyond operands of wrong sizes: sizes of 1 are never wrong.
_UNSAFE = re.compile(r"batch_norm")

#: Operators that are never asked. Their CPU kernels take values, such as pivots, offsets, lengths and what a forward
#: pass has left, for addresses without a look; and gradients come from autograd, whose forward pass was asked. Those
#: that users call themselves, and whose kernels look, are asked.
#: `histc` takes integers on CUDA, and here, and not on the CPU.
_UNASKED = re.compile(
    r"(?<!softmax_)(?<!max_pool2d_with_indices_)backward|assert|lu_solve|lu_unpack|ldl_solve|ctc|embedding_bag|segment"
    r"|grouped|_fused|quantize|_rnn|lstm|gru|mkldnn|histc"
)


@functools.cache
def _is_checked(func: OpOverload) -> bool:
    """Whether the CPU has a kernel that says what torch refuses, and does nothing else."""
    if func.namespace != "aten" or schema_of(func).is_mutable or _UNASKED.search(func.name()):
        return False
    return has_computed_kernel(func.name(), "CPU")


def check(
    func: OpOverload,
    call: Callable[[Callable[[TensorSpec], torch.Tensor]], Any],
    specs: Sequence[TensorSpec],
) -> None:
    """Calls the CPU kernel on stand-ins.

    Args:
        func: the operator.
        call: runs it with the stand-ins that it is given a maker of, see `run`.
        specs: of all operands and results.

    Raises:
        RuntimeError, TypeError, ...: what the CPU kernel raises.
    """
    if not _is_checked(func):
        return
    safe = _UNSAFE.search(func.name()) is None
    whole = safe and sum(_held(spec) for spec in specs) <= _SMALL
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call(_whole if whole else _cut if safe else _one)
    except Exception as error:
        if _is_of_sixteen_bits(error):
            believed = _FACTORIZING.search(func.name()) is not None
        else:
            believed = _is_believed(error, whole and _VALUES.search(func.name()) is None)
        if believed:
            raise


def run(func: OpOverload, *args: Any, **kwargs: Any) -> None:
    """Calls an operator without using up torch's random numbers."""
    if torch.Tag.nondeterministic_seeded in func.tags:
        quietly(func, *args, **kwargs)
    else:
        func(*args, **kwargs)


def _is_of_sixteen_bits(error: Exception) -> bool:
    return _OF_SIXTEEN_BITS.search(str(error)) is not None


def _is_believed(error: Exception, whole: bool) -> bool:
    text = str(error)
    return not text.startswith("Could not run") and (whole or _OF_DTYPES.search(text) is not None)


def _held(spec: TensorSpec) -> int:
    return spec.offset + storage_size(spec.shape, spec.stride)


def _whole(spec: TensorSpec) -> torch.Tensor:
    filled = _filled(spec.offset + storage_size(spec.shape, spec.stride), spec.dtype)
    return filled.as_strided(spec.shape, spec.stride, spec.offset)


def _cut(spec: TensorSpec) -> torch.Tensor:
    return _filled(tuple(min(size, _CUT) for size in spec.shape), spec.dtype)


def _one(spec: TensorSpec) -> torch.Tensor:
    return _filled((1,) * len(spec.shape), spec.dtype)


def _filled(shape: Any, dtype: torch.dtype) -> torch.Tensor:
    """Numbers are ones, so that nothing is divided by zero; integers are zeros, which are in range as indices."""
    value = 1 if dtype.is_floating_point or dtype.is_complex else 0
    return torch.full(shape if isinstance(shape, tuple) else (shape,), value, dtype=dtype, device="cpu")
