"""Which programs call torch's kernels and ours in a thread of their own, on the CPU."""

from __future__ import annotations

from ..ir.graph import Call, Graph
from ..ops import kernels

#: How the names begin of operators that are kernels on the CPU as a rule, and no products of matrices.
_OTHER_KERNELS = (
    "aten::convolution",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "lazy_runtime::attention",
    "lazy_runtime::recurrence",
)

#: Elements of an operand from which on a product may be a kernel's.
_MANY = 1 << 12


def is_of_kernels(graph: Graph) -> bool:
    """Whether torch's kernels and ours, which an XLA program calls on the CPU, run in a thread of their own: it has
    convolutions or products, and nothing in it waits for others, as Python and collectives may.

    Each of XLA's threads that calls a kernel gets OpenMP workers, which stay. With more of them than processors, every
    kernel of the process waits for its own to be woken, also the user's eager operators: a training step of a
    mobilenet_v2 took 148 ms in XLA's threads and takes 117, and eager steps beside it 220 and 140 (two cores).
    """
    if graph.device.platform != "cpu" or graph.device.grid is not None or graph.is_collective:
        return False
    operators = [call for call in graph.all_calls() if call.nested is None]
    return any(map(_is_heavy, operators)) and all(call.is_ours for call in operators)


def has_other_kernels(graph: Graph) -> bool:
    """Whether kernels of torch's or ours run between its products of matrices."""
    return any(
        call.name in kernels.packed_operators or call.name.startswith(_OTHER_KERNELS) for call in graph.all_calls()
    )


def _is_heavy(call: Call) -> bool:
    """Whether it is a convolution or a product that is not small."""
    if call.name in kernels.packed_operators:
        return True
    has_products = call.meaning is not None and call.meaning[0].products
    return has_products and any(spec.numel >= _MANY for spec in call.inputs)
