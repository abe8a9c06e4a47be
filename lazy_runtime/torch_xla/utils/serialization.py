"""Saving with each tensor in a file of its own, so that one tensor at a time is in host memory. Tensors that show the
same memory in the same way, as tied weights do, have one file and come back as one; views of a part come back apart.

The file with the structure refers to the tensors' files by their numbers, and is written last. What is saved over an
older checkpoint has other numbers, so until then the older one is whole.
"""

from __future__ import annotations

import os
import re
from typing import Any, NamedTuple

import torch

from ...common import whole_files
from ...compat.torch import storage_address_of
from ..core import xla_model
from ..core.arena import ToXlaTensorArena


class TensorReference(NamedTuple):
    """Stands in the saved data for the tensor in the file of this number."""

    tid: int


def save(data: Any, path: str, master_only: bool = True, global_master: bool = False) -> None:
    """Saves data: its structure in the file `path`, the xla tensors in it in the folder `path.tensors`, as CPU tensors.
    A kill leaves what was there before, or all of it.

    Args:
        master_only: only the first replica of each host writes.
        global_master: with `master_only`, only the first of all.
    """
    if master_only and not xla_model.is_master_ordinal(local=not global_master):
        return
    folder = _folder(path)
    os.makedirs(folder, exist_ok=True)
    known = _numbers(folder)

    def write(tensors: list[torch.Tensor]) -> list[TensorReference]:
        if tensors:
            xla_model.unlazy(tensors)  # one execution for all of them
        first = 0 if len(tensors) <= min(known, default=len(tensors)) else max(known) + 1
        found: dict[Any, TensorReference] = {}
        for tensor in tensors:
            if _shown(tensor) in found:
                continue
            reference = found[_shown(tensor)] = TensorReference(first + len(found))
            file = _file(folder, reference.tid)
            torch.save(tensor.detach().cpu(), file)
            whole_files.flush(file)
        return [found[_shown(tensor)] for tensor in tensors]

    with whole_files.replacing(path) as structure:
        torch.save(ToXlaTensorArena(write, _is_on_xla).transform(data), structure)
    for number in known:
        os.remove(_file(folder, number))


def load(path: str) -> Any:
    """Loads what `save` saved, with its tensors on the CPU."""
    folder = _folder(path)
    with torch.serialization.safe_globals([TensorReference]):
        data = torch.load(path)

    def read(references: list[TensorReference]) -> list[torch.Tensor]:
        found: dict[int, torch.Tensor] = {}
        for reference in references:
            if reference.tid not in found:
                found[reference.tid] = torch.load(_file(folder, reference.tid))
        return [found[reference.tid] for reference in references]

    return ToXlaTensorArena(read, lambda value: type(value) is TensorReference).transform(data)


def _shown(tensor: torch.Tensor) -> Any:
    """What two tensors have in common that are one when they are loaded."""
    if tensor.is_sparse:
        return id(tensor)
    return (
        storage_address_of(tensor.untyped_storage()),
        tensor.storage_offset(),
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
    )


def _is_on_xla(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "xla"


def _folder(path: str) -> str:
    return f"{path}.tensors"


def _file(folder: str, number: int) -> str:
    return os.path.join(folder, f"tensor_{number}.pt")


def _numbers(folder: str) -> list[int]:
    """Those of the files in it."""
    return [int(found[1]) for name in os.listdir(folder) if (found := re.fullmatch(r"tensor_(\d+)\.pt", name))]
