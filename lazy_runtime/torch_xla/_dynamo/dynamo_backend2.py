"""A backend of Dynamo by PyTorch/XLA's second name: there it goes through jax, as `openxla` does here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...compat.dynamo import lookup_backend


def dynamo_backend(fx: torch.fx.GraphModule, args: Sequence[Any]) -> Callable[..., Any]:
    """`torch.compile(backend=dynamo_backend)` is `torch.compile(backend="openxla")`."""
    return lookup_backend("openxla")(fx, args)
