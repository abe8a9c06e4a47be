"""`torch.compile(model, backend="openxla")`: the functions that Dynamo calls."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd

from .compiled import CompiledGraph


def _compile(gm: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
    """AOTAutograd's forward, backward and inference compiler."""
    return CompiledGraph(gm, examples, _static_arguments(gm))


def _static_arguments(gm: torch.fx.GraphModule) -> frozenset[int]:
    """Numbers of the placeholders that are parameters or buffers, in a forward or a backward graph.

    AOTAutograd counts them over the arguments of the forward graph; a partitioned graph has these under the names
    `primals_1`, `primals_2`, ..., and the backward graph keeps the names of those that it needs.
    """
    context = torch._guards.TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    static = set(getattr(metadata, "static_input_indices", None) or ())
    found = set()
    for number, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        primal = _PRIMAL.fullmatch(node.target)
        if (int(primal[1]) - 1 if primal else number if node.target.startswith("arg") else -1) in static:
            found.add(number)
    return frozenset(found)


_PRIMAL = re.compile(r"primals_(\d+)")


def openxla(gm: torch.fx.GraphModule, examples: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """The backend: inference and training graphs, on xla tensors or, in their own memory, on plain ones.

    Raises:
        TypeError: unknown options.
    """
    if options:
        raise TypeError(f"backend='openxla' takes no options, got {', '.join(sorted(options))}")
    return aot_autograd(
        fw_compiler=_compile,
        bw_compiler=_compile,
        inference_compiler=_compile,
        decompositions={},
        keep_inference_input_mutations=True,
    )(gm, examples)


def torchxla_trace_once(gm: torch.fx.GraphModule, examples: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """PyTorch/XLA 2.0's name of the inference backend; warns and forwards to `openxla`."""
    _deprecated("torchxla_trace_once")
    return openxla(gm, examples, **options)


def aot_torchxla_trace_once(gm: torch.fx.GraphModule, examples: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """PyTorch/XLA 2.0's name of the training backend; warns and forwards to `openxla`."""
    _deprecated("aot_torchxla_trace_once")
    return openxla(gm, examples, **options)


def _deprecated(name: str) -> None:
    warnings.warn(
        f"backend={name!r} is PyTorch/XLA 2.0's name: use backend='openxla'", DeprecationWarning, stacklevel=3
    )
