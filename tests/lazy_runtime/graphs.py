"""Graphs for the tests of what handles them: a function of xla tensors, recorded and numbered but not run."""

from __future__ import annotations

from typing import Any

import torch

import lazy_runtime
from lazy_runtime.compilation import linearization
from lazy_runtime.recording import dispatch
from lazy_runtime.tensor.xla_tensor import XLATensor, from_array, unwrap


def buffers(*tensors: torch.Tensor) -> list[XLATensor]:
    """The tensors with their values computed, each held by nothing but what is returned."""
    inner = [unwrap(x.to("xla")) for x in tensors]
    lazy_runtime.sync()
    return [from_array(x.handle.value.array, x.spec) for x in inner]


def record(function: Any, *tensors: XLATensor) -> tuple[list, Any]:
    """The nodes that a function records, and what it returns."""
    with dispatch.Trace(tensors[0].spec.device) as trace:
        result = function(*tensors)
    return trace.nodes, result


def number(function: Any, *tensors: XLATensor, donate: bool = False) -> tuple[linearization.Linearized, Any]:
    """The function's graph, and what it returns: a result that is not kept is not an output."""
    nodes, result = record(function, *tensors)
    return linearization.linearize(tensors[0].spec.device, nodes, donate), result
