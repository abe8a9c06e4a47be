"""`torch.jit.trace` on xla: of convolutions and factories, whose results it would take for constants.

Torch's tracer records what reaches its own key, and `aten::convolution` it passes over: on a CPU or a GPU that operator
calls `aten::_convolution`, which is recorded. On xla it is the one that is computed. Of what a factory gives, such as
`torch.zeros`, torch's C++ may return a copy that the tracer does not know.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

from ..compat.torch import DispatchKey, is_functional_tensor, kernel_call_of

aten = torch.ops.aten


def _convolution(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *geometry: Any) -> torch.Tensor:
    """`aten::convolution` while `torch.jit.trace` records: the operator that torch's own kernel would call."""
    if x.device.type != "xla":
        return kernel_call_of(aten.convolution.default)(DispatchKey.Autograd, x, weight, bias, *geometry)
    cudnn: Any = torch.backends.cudnn  # for whoever runs the trace on CUDA
    flags = cudnn.benchmark, cudnn.deterministic, cudnn.enabled, cudnn.allow_tf32
    return aten._convolution.default(x, weight, bias, *geometry, *flags)


def traceable(tensor: torch.Tensor) -> torch.Tensor:
    """What a factory has made, so that torch's C++ hands on this tensor itself, and no copy.

    A kernel cannot know that it is traced: the tracer is off while it runs.
    """
    if is_functional_tensor(tensor):
        torch.ops.lazy_runtime.own_version.default(tensor)
    return tensor


def register(library: torch.library.Library) -> None:
    """Registers it with torch's dispatcher, which asks it in traces only."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has a kernel there, which passes the operator on
        library.impl("convolution", _convolution, "Tracer")
