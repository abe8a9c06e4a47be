"""Saving with each tensor in a file of its own, so that one tensor at a time is in host memory."""

from __future__ import annotations

import os
import shutil
from typing import Any, NamedTuple

import torch

from ..core import xla_model
from ..core.arena import ToXlaTensorArena


class TensorReference(NamedTuple):
    """Stands in the saved data for the tensor in the file of this number."""

    tid: int


def save(data: Any, path: str, master_only: bool = True, global_master: bool = False) -> None:
    """Saves data: its structure in the file `path`, the xla tensors in it in the folder `path.tensors`, as CPU tensors.

    Args:
        master_only: only the first replica of each host writes.
        global_master: with `master_only`, only the first of all.
    """
    if master_only and not xla_model.is_master_ordinal(local=not global_master):
        return
    folder = _folder(path)
    if os.path.isdir(folder):
        shutil.rmtree(folder)
    os.makedirs(folder)

    def write(tensors: list[torch.Tensor]) -> list[TensorReference]:
        if tensors:
            xla_model.unlazy(tensors)  # one execution for all of them
        for number, tensor in enumerate(tensors):
            torch.save(tensor.detach().cpu(), _file(folder, number))
        return [TensorReference(number) for number in range(len(tensors))]

    torch.save(ToXlaTensorArena(write, _is_on_xla).transform(data), path)


def load(path: str) -> Any:
    """Loads what `save` saved, with its tensors on the CPU."""
    folder = _folder(path)
    with torch.serialization.safe_globals([TensorReference]):
        data = torch.load(path)

    def read(references: list[TensorReference]) -> list[torch.Tensor]:
        return [torch.load(_file(folder, reference.tid)) for reference in references]

    return ToXlaTensorArena(read, lambda value: type(value) is TensorReference).transform(data)


def _is_on_xla(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "xla"


def _folder(path: str) -> str:
    return f"{path}.tensors"


def _file(folder: str, number: int) -> str:
    return os.path.join(folder, f"tensor_{number}.pt")
