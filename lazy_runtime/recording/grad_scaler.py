"""`torch.amp.GradScaler("xla")`: the one operator of it whose results are nested."""

from __future__ import annotations

from typing import Any

from ..common import errors
from ..ops import registry
from ..tensor.xla_tensor import XLATensor
from . import dispatch


@dispatch.handler("aten::_amp_foreach_non_finite_check_and_unscale")
def _unscale(func: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[list[XLATensor], XLATensor]:
    """One node for all gradients. It gives a flat list, the operator (list of gradients, found_inf)."""
    *unscaled, found_inf = dispatch.record(registry.table[func], args, kwargs)
    return unscaled, found_inf


@dispatch.handler("aten::_amp_foreach_non_finite_check_and_unscale_")
def _unscale_in_place(func: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """Functionalization looks at the gradients alone. Where none is on xla the call arrives as it was made: without
    gradients there is nothing to do.
    """
    for gradient in args[0]:
        raise RuntimeError(errors.device_mismatch(gradient.device, args[1].device))
