"""A batch norm of inference within the convolution before it: `lazy_runtime::fold_batch_norm`."""

from __future__ import annotations

from typing import NamedTuple

import jax
import torch

from ..kernels import Kernel, Packing, Refused, Table, Verdict, sizes
from ..registry import op

_library = torch.library.Library("lazy_runtime", "FRAGMENT")
_library.define(
    "fold_batch_norm(Tensor filters, Tensor? filters_bias, Tensor? weight, Tensor? bias, Tensor mean, Tensor variance, "
    "float eps) -> (Tensor, Tensor)"
)
_library.impl("fold_batch_norm", lambda filters, *rest: (torch.empty_like(filters), torch.empty_like(rest[4])), "Meta")


@op("lazy_runtime::fold_batch_norm")
def fold_batch_norm(filters, filters_bias, weight, bias, mean, variance, eps):
    """Filters and bias of a convolution that does what it and the batch norm behind it did."""
    scale = jax.lax.rsqrt(variance + eps)
    if weight is not None:
        scale = scale * weight
    shift = -mean * scale if filters_bias is None else (filters_bias - mean) * scale
    if bias is not None:
        shift = shift + bias
    return filters * scale.reshape(-1, *[1] * (filters.ndim - 1)), shift


class FoldingProblem(NamedTuple):
    """A batch norm of inference behind a convolution.

    Attributes:
        filters: sizes of the convolution's filters.
        dtypes: names of the dtypes of the image, the filters and the statistics.
        refuses: why the program around them leaves the convolution as it is; empty if it does not.
    """

    filters: tuple[int, ...]
    dtypes: tuple[str, ...]
    refuses: str = ""

    def __str__(self) -> str:
        return f"filters {sizes(self.filters)} of {', '.join(self.dtypes)}"


def accepts(problem: FoldingProblem) -> Verdict:
    """Whether the batch norm goes into the filters and the bias before it.

    In float32 and float64 only: a folded weight in half precision would be rounded once more than torch's.
    """
    return (
        (not problem.refuses or Refused(problem.refuses))
        and (len(problem.dtypes) == 1 or Refused("dtypes differ"))
        and (problem.dtypes[0] in ("float32", "float64") or Refused("a folded weight would be rounded once more"))
    )


FOLDING = Table(
    "batch norm behind a convolution",
    [
        Kernel(
            "folded into the filters",
            accepts,
            packing=Packing(torch.ops.lazy_runtime.fold_batch_norm.default, None, lambda filters, _: [*filters.shape]),
        )
    ],
)
