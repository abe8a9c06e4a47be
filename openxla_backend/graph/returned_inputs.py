"""Outputs of a graph that are inputs which it writes to, beside a write that is left to AOTAutograd's runtime.

AOTAutograd (torch 2.13, whatever the backend) returns such an input itself, in the place of another output: it counts
the outputs without the values of the inputs that its runtime writes to, which stand before them. The other output is
lost. `def f(p, b, x): p.mul_(2); return (p * x).sum(), b.add_(1)` gives `b` twice where `p` requires gradients.
"""

from __future__ import annotations

from typing import Any

from lazy_runtime.compat.tracing import MutationType, OutputType


class MisplacedOutput(Exception):
    """The graph has lost an output: it is to be traced again, with all writes to inputs left to the runtime."""


def check(metadata: Any) -> None:
    """Looks whether AOTAutograd has put an input in the place of another output.

    Args:
        metadata: AOTAutograd's notes on the graph; None where there are none.

    Raises:
        MisplacedOutput: it has.
    """
    if metadata is None or not metadata.num_mutated_inp_runtime_indices:
        return
    returned = [output.base_idx for output in metadata.output_info if output.output_type is OutputType.is_input]
    if any(metadata.input_info[number].mutation_type is MutationType.MUTATED_IN_GRAPH for number in returned):
        raise MisplacedOutput
