"""What the compiler must not move work across: `lazy_runtime::optimization_barrier(Tensor[] tensors) -> Tensor[]`."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import torch

from ...lowering import aten_bridge
from ...lowering.layout import ChannelsLast
from ..registry import op, overload

_library = torch.library.Library("lazy_runtime", "FRAGMENT")
_library.define("optimization_barrier(Tensor[] tensors) -> Tensor[]")


def _same(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device) for x in tensors]


_library.impl("optimization_barrier", _same, "Meta")
_library.impl("optimization_barrier", lambda tensors: [x.clone() for x in tensors], "CPU")  # nobody merges there


@op("lazy_runtime::optimization_barrier", channels_last=True)
def optimization_barrier(tensors, *, input_spec):
    # XLA:CPU (jaxlib 0.10.2) takes its barriers away and merges equal work afterwards: jax's own checkpoints save
    # nothing there. A custom call it leaves alone; this one costs a copy of the tensors.
    if input_spec.device.platform == "cpu" and aten_bridge.available():
        given = list(tensors)
        if _HAS_CLONE:
            return aten_bridge.call("aten::_foreach_clone", [given, None], given)
        return aten_bridge.call("aten::_foreach_copy", [given, given, False], given)  # copies twice
    arrays = [x.physical if isinstance(x, ChannelsLast) else x for x in tensors]
    same = jax.lax.optimization_barrier(arrays)
    return [ChannelsLast(y) if isinstance(x, ChannelsLast) else y for x, y in zip(tensors, same, strict=True)]


_HAS_CLONE = overload("aten::_foreach_clone") is not None  # since torch 2.13
