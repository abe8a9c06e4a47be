"""A recurrent layer's steps on the CPU in a kernel of ours (native/recurrence.cpp).

XLA's loop writes each step's gates to memory, reads the weight from wherever the last step has left it, and wakes its
threads once for each operator.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import torch

from ...lowering import aten_bridge
from .. import kernels
from ..kernels import Kernel, Refused, Verdict

#: Numbers of the modes in the kernel, and how many numbers of a feature it keeps for the backward pass.
MODES = {"lstm": (0, 5), "gru": (1, 4), "rnn_tanh": (2, 0), "rnn_relu": (3, 0)}

#: Features come in so many together, a vector of the processor's.
LANES = 16


class RecurrenceProblem(NamedTuple):
    """One direction of one recurrent layer.

    Attributes:
        mode: `lstm`, `gru`, `rnn_tanh` or `rnn_relu`.
        gates: sizes of the inputs' gates, (steps, batch, gates * features).
        features: of the hidden state.
        dtypes: names of the dtypes of gates, states and weights.
        platform: where it is computed.
        is_packed: sequences have their own lengths.
        is_projected: the hidden state is a projection.
    """

    mode: str
    gates: tuple[int, ...]
    features: int
    dtypes: frozenset[str]
    platform: str
    is_packed: bool = False
    is_projected: bool = False

    def __str__(self) -> str:
        kinds = "packed, " * self.is_packed + "projected, " * self.is_projected
        dtypes = " and ".join(sorted(self.dtypes))
        gates = kernels.sizes(self.gates)
        return f"{self.mode}, {kinds}gates {gates}, {self.features} features of {dtypes} on {self.platform}"


def accepts(problem: RecurrenceProblem) -> Verdict:
    """Whether the kernel computes this layer."""
    return (
        (problem.dtypes == {"float32"} or Refused(f"it is for float32, not {' and '.join(sorted(problem.dtypes))}"))
        and (not problem.is_packed or Refused("it takes no packed sequences"))
        and (not problem.is_projected or Refused("it takes no projections"))
        and (problem.features % LANES == 0 or Refused(f"{problem.features} features are no multiple of {LANES}"))
        and (0 not in problem.gates or Refused("there is no step or no sequence"))
        and available(problem.platform)
    )


def available(platform: str) -> Verdict:
    """Whether the kernel is there."""
    return kernels.on_cpu(platform) and kernels.works(_is_built, "recurrence")


@functools.cache
def _is_built() -> bool:
    def is_right(kernel: Any) -> bool:
        gates, hidden = torch.ones(2, 1, LANES), torch.zeros(1, LANES)
        output, *_ = kernel(MODES["rnn_relu"][0], gates, hidden, None, torch.eye(LANES), None, False)
        return torch.equal(output[:, 0, 0], torch.tensor([1.0, 2.0]))

    return aten_bridge.kernel_works("recurrence", is_right)


def _forward(
    mode: str, gates: Any, hidden: Any, cell: Any, weight: Any, bias: Any, projection: Any, batch_sizes: Any,
    reverse: bool, out: Any,
) -> tuple[Any, ...]:  # fmt: skip
    arguments = [MODES[mode][0], gates, hidden, cell, weight, bias, reverse]
    likes = [jax.ShapeDtypeStruct(spec.shape, gates.dtype) for spec in out]
    return tuple(aten_bridge.call("lazy_runtime_kernels::recurrence", arguments, likes))


KERNEL = Kernel("native", accepts, _forward, available, lambda: {"features in multiples of": LANES})
