"""What the choice of a kernel for an attention, or for its gradients, depends on."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..kernels import Refused, Verdict, sizes


class AttentionProblem(NamedTuple):
    """A scaled dot-product attention, or its gradients.

    Attributes:
        query, key, value: sizes, [..., heads, rows, features]. Keys and values may have fewer heads.
        dtype: name of the operands' dtype.
        platform: where it is computed.
        mask: name of the mask's dtype; empty for none.
        is_causal: query n attends to the keys 0...n.
        has_dropout: some weights are dropped.
        wants_mask: the gradient of the mask is wanted too.
    """

    query: tuple[int, ...]
    key: tuple[int, ...]
    value: tuple[int, ...]
    dtype: str
    platform: str
    mask: str = ""
    is_causal: bool = False
    has_dropout: bool = False
    wants_mask: bool = False

    @classmethod
    def of(
        cls, platform: str, query: Any, key: Any, value: Any, mask: Any, is_causal: bool, dropout: float,
        wants_mask: bool = False,
    ) -> AttentionProblem:  # fmt: skip
        """The problem of operands, arrays or tensors."""
        shapes = tuple(query.shape), tuple(key.shape), tuple(value.shape)
        added = "" if mask is None else name_of(mask.dtype)
        return cls(*shapes, name_of(query.dtype), platform, added, is_causal, dropout != 0, wants_mask)

    def __str__(self) -> str:
        parts = [
            f"queries {sizes(self.query)}, keys {sizes(self.key)}, values {sizes(self.value)} of {self.dtype}",
            self.mask and f"a mask of {self.mask}",
            "causal" * self.is_causal,
            "dropout" * self.has_dropout,
            "the mask's gradient" * self.wants_mask,
        ]
        return ", ".join(filter(None, parts)) + f" on {self.platform}"


def name_of(dtype: Any) -> str:
    """A dtype's name, torch's or numpy's."""
    return str(dtype).removeprefix("torch.")


def has_no_dropout(problem: AttentionProblem) -> Verdict:
    """Whether every weight counts."""
    return not problem.has_dropout or Refused("it has no dropout")


def has_batches_of_heads(problem: AttentionProblem) -> Verdict:
    """Whether the queries are of four dimensions: batch, heads, rows and features."""
    return len(problem.query) == 4 or Refused("the queries are no batches of heads")
