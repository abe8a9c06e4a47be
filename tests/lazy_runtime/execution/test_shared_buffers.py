"""Buffers that others hold beside tensors."""

from __future__ import annotations

import torch

import lazy_runtime
from lazy_runtime.execution import shared_buffers
from lazy_runtime.tensor.xla_tensor import unwrap


def test_a_buffer_of_two_tensors_survives_what_updates_one():
    x = torch.ones(1 << 12, device="xla")
    array = shared_buffers.array_of(unwrap(x))
    y = shared_buffers.tensor_over(array, unwrap(x).spec.device)
    for _ in range(3):
        x.add_(1)
        lazy_runtime.sync()
    assert (x[0].item(), y[0].item()) == (4, 1)
    assert not array.is_deleted()
