"""xla tensors in the queues, pipes and process arguments of `torch.multiprocessing`: their elements are sent.

The receiver gets a copy on the device of the same name in its own process, where CUDA's tensors would be shared. So the
sender may end before it arrives.
"""

from __future__ import annotations

import multiprocessing.reduction
import pickle
from typing import Any

import torch
from torch.multiprocessing import reductions


def reduce_tensor(tensor: torch.Tensor) -> Any:
    """What is sent for a tensor, in pickle's form.

    Args:
        tensor: on any device; those that are not on xla are sent as torch sends them, in shared memory.

    Raises:
        RuntimeError: it belongs to a graph of autograd, which processes do not share.
    """
    if tensor.device.type != "xla":
        return reductions.reduce_tensor(tensor)
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError(
            "an xla tensor that is not a leaf and requires grad cannot be sent to another process, since autograd does "
            "not cross the boundary: send tensor.detach()"
        )
    return _rebuild, (pickle.dumps(tensor.detach().cpu()), str(tensor.device), type(tensor), tensor.requires_grad)


def _rebuild(host: bytes, device: str, kind: type, requires_grad: bool) -> torch.Tensor:
    tensor = pickle.loads(host).to(device)
    if issubclass(kind, torch.nn.Parameter):
        return torch.nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)


def register() -> None:
    """Has `torch.multiprocessing` send xla tensors so."""
    for kind in (torch.Tensor, torch.nn.Parameter):
        multiprocessing.reduction.register(kind, reduce_tensor)
