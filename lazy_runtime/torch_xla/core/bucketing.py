"""Collectives of many tensors at once, up to so many megabytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import collectives
from .collectives import Groups


class CoalescingBuckets:
    """Calls a collective of lists of tensors, each of at most a number of megabytes or one tensor.

    Args:
        func: (tensors, outputs) → results; a single tensor and output where a bucket has one.
        input_list: the tensors.
        output_list: what the results are written to.
        bucket_cap_mb: megabytes in a bucket; 0 or less for each tensor by itself.

    Raises:
        TypeError: a list is none, or has something else than tensors.
        ValueError: there are not as many outputs as inputs.
    """

    def __init__(
        self,
        func: Callable[[Any, Any], Any],
        input_list: list[torch.Tensor],
        output_list: list[torch.Tensor] | None = None,
        bucket_cap_mb: float = 160,
    ):
        _require_tensors("input_list", input_list)
        if output_list is not None:
            _require_tensors("output_list", output_list)
            if len(output_list) != len(input_list):
                raise ValueError(
                    f"output_list: expected {len(input_list)} tensors, as many as in input_list, got {len(output_list)}"
                )
        self._func = func
        self._inputs = input_list
        self._outputs = output_list
        self._room = bucket_cap_mb * 2**20
        self._held = 0
        self._numbers: list[int] = []
        self._tensors: list[torch.Tensor] = []
        self._results: list[Any] = []

    def add(self, tensor: torch.Tensor, idx: int) -> None:
        """Puts a tensor into the bucket.

        Args:
            idx: its number in the list.
        """
        self._held += tensor.numel() * tensor.element_size()
        self._tensors.append(tensor)
        self._numbers.append(idx)

    def flush(self) -> None:
        """Calls the collective of what is in the bucket."""
        tensors, outputs = self._tensors, None
        if self._outputs is not None:
            outputs = [self._outputs[number] for number in self._numbers]
        self._held, self._tensors, self._numbers = 0, [], []
        if len(tensors) == 1:
            self._results.append(self._func(tensors[0], outputs and outputs[0]))
        elif tensors:
            self._results.extend(self._func(tensors, outputs))

    def __call__(self) -> list[Any]:
        """The results, in the tensors' order."""
        for number, tensor in enumerate(self._inputs):
            if self._tensors and self._held + tensor.numel() * tensor.element_size() > self._room:
                self.flush()
            self.add(tensor, number)
        self.flush()
        return self._results


def _require_tensors(name: str, tensors: Any) -> None:
    if not isinstance(tensors, list) or not all(isinstance(each, torch.Tensor) for each in tensors):
        raise TypeError(f"{name}: expected a list of tensors, got {type(tensors).__name__}")


def all_gather_bucketized(
    input_list: list[torch.Tensor],
    dim: int = 0,
    groups: Groups = None,
    output: list[torch.Tensor] | None = None,
    pin_layout: bool = False,
    bucket_cap_mb: float = 160,
) -> list[torch.Tensor]:
    """`xm.all_gather` of each tensor, up to so many megabytes at once."""

    def gather(tensors: Any, outputs: Any) -> Any:
        return collectives.all_gather(tensors, dim, groups, outputs, pin_layout)

    return CoalescingBuckets(gather, input_list, output, bucket_cap_mb)()


def reduce_scatter_bucketized(
    reduce_type: str,
    input_list: list[torch.Tensor],
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Groups = None,
    output: list[torch.Tensor] | None = None,
    pin_layout: bool = False,
    bucket_cap_mb: float = 160,
) -> list[torch.Tensor]:
    """`xm.reduce_scatter` of each tensor, up to so many megabytes at once."""

    def scatter(tensors: Any, outputs: Any) -> Any:
        return collectives.reduce_scatter(
            reduce_type, tensors, scale, scatter_dim, shard_count, groups, outputs, pin_layout
        )

    return CoalescingBuckets(scatter, input_list, output, bucket_cap_mb)()


def all_reduce_bucketized_gradients(
    gradients: Sequence[torch.Tensor],
    scale: float,
    groups: Groups,
    pin_layout: bool,
    bucket_cap_mb: float = 0,
) -> None:
    """Replaces gradients by their sums over the ranks times `scale`, up to so many megabytes at once.

    Args:
        bucket_cap_mb: 0 for all at once.
    """

    def reduce(tensors: Any, outputs: Any) -> Any:
        tensors = tensors if isinstance(tensors, list) else [tensors]
        return collectives.all_reduce(collectives.REDUCE_SUM, tensors, scale, groups, pin_layout=pin_layout)

    CoalescingBuckets(reduce, list(gradients), bucket_cap_mb=bucket_cap_mb or float("inf"))()
