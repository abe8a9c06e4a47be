"""FSDP2 (`torch.distributed.fsdp.fully_shard`) on xla: its operators, and what it frees.

FSDP gathers a layer's parameters into memory that it frees when they have been used, by taking all bytes from its
storage. Here memory belongs to the program: what nobody can ask for any more is no result of it. So FSDP's parameters
lose their values where torch would free them, and get new ones with the next gather.
"""

from __future__ import annotations

from typing import Any

import torch

from ...compat.torch import from_functional_tensor, functionalize_sync
from ...execution import execute
from ...ir.graph import Handle, Value
from ...recording import views
from ...tensor.xla_tensor import rebind

_libraries: list[torch.library.Library] = []


def register() -> None:
    """Registers FSDP's operators, and what happens where it frees parameters and ends a backward pass. Idempotent."""
    if _libraries:
        return
    from ...compat.distributed import finalize_backward, free_unsharded, fsdp_all_gather_copy_in, fsdp_chunk_cat

    library = torch.library.Library("fsdp", "IMPL")
    _libraries.append(library)
    operators = {
        "all_gather_copy_in": fsdp_all_gather_copy_in,
        "split_with_sizes_copy": _split_with_sizes_copy,
        "chunk_cat": fsdp_chunk_cat,
    }
    for name, function in operators.items():
        for key in ("AutogradXLA", "Functionalize"):  # they are made of torch's, which write to their arguments
            library.impl(name, function, key)
    free_unsharded.set(_free_unsharded(free_unsharded.get()))
    finalize_backward.set(_finalize_backward(finalize_backward.get()))


def _split_with_sizes_copy(whole: torch.Tensor, sizes: list[int], dim: int = 0, *, out: list[torch.Tensor]) -> None:
    """Writes the parts to `out`; torch's own, which asks for an operator with a list of results to write to, would
    leave them the strides of the parts.
    """
    with torch.no_grad():
        for target, part in zip(out, whole.split(sizes, dim), strict=True):
            target.copy_(part)


def _free_unsharded(torchs: Any) -> Any:
    def free_unsharded_param(self: Any) -> None:
        unsharded = getattr(self, "_unsharded_param", None)
        tensors = [*self.all_gather_outputs, *self._unsharded_inner_tensors]
        if not tensors or tensors[0].device.type != "xla":
            torchs(self)
            return
        if unsharded is not None:
            tensors.append(getattr(unsharded, "_local_tensor", unsharded))
        for tensor in tensors:
            functionalize_sync(tensor)
        for tensor in tensors:
            _forget(tensor)

    return free_unsharded_param


def _forget(tensor: torch.Tensor) -> None:
    """The tensor has no value any more. Who has it as an operand of something recorded keeps it."""
    if views.has_memory(tensor) and not execute.eager:  # eagerly, a view of it would be computed
        rebind(from_functional_tensor(tensor), Handle(Value(None, 0)))


def _finalize_backward(torchs: Any) -> Any:
    def finalize_backward(self: Any) -> None:
        gathered = self._all_gather_result
        if gathered is not None and self.device.type == "xla":
            # Gathered ahead and not used, as after an evaluation. Torch would wait for it on the stream of
            # `torch.accelerator`, which xla is not.
            self._all_gather_result = gathered._replace(all_gather_event=None)
        torchs(self)

    return finalize_backward
