"""Custom calls in programs, and where buffers are placed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...functions import jax_function

__all__ = [
    "extract_custom_call_outputs_shape_dtype",
    "place_to_device",
    "place_to_host",
    "stablehlo_custom_call",
    "to_device_backward",
    "to_host_backward",
]


def stablehlo_custom_call(
    args: Sequence[torch.Tensor],
    call_target: str,
    output_shapes: Sequence[Sequence[int]],
    output_dtypes: Sequence[torch.dtype],
    has_side_effect: bool = False,
    backend_config: str = "",
    api_version: int = 0,
    frontend_attributes: Mapping[str, str] | None = None,
) -> Any:
    """A `stablehlo.custom_call`, without a gradient. XLA has to know its target where the program runs.

    Args:
        args: at least one xla tensor.
        call_target: the name that XLA knows it by.
        output_shapes, output_dtypes: of its results.
        has_side_effect: XLA may neither leave it out nor merge it with another.
        backend_config: text for the target.
        api_version: of the target's interface, 1 to 3 of XLA's older ones; 0 is 1.
        frontend_attributes: what XLA's passes are told of it.

    Returns:
        a tensor, or a list of several.

    Raises:
        ValueError: `args` is empty.
    """
    if not args:
        raise ValueError(f"stablehlo_custom_call({call_target!r}): expected at least one input tensor, got none")
    from ...ir import dtypes

    looks = [(tuple(shape), dtype) for shape, dtype in zip(output_shapes, output_dtypes, strict=True)]
    attributes = dict(frontend_attributes or {})
    key = ("custom_call", call_target, tuple(looks), has_side_effect, backend_config, api_version)

    def call(*arrays: Any) -> list[Any]:
        import jax
        from jax.experimental.xla_metadata import set_xla_metadata

        structs = [jax.ShapeDtypeStruct(shape, dtypes.to_numpy(dtype)) for shape, dtype in looks]
        target = jax.ffi.ffi_call(
            call_target,
            structs,
            has_side_effect=has_side_effect,
            custom_call_api_version=api_version or 1,
            legacy_backend_config=backend_config,
        )
        with set_xla_metadata(**attributes):
            return list(target(*arrays))

    found = jax_function.call(call, list(args), (*key, tuple(attributes.items())), call_target)
    return found[0] if len(found) == 1 else found


def extract_custom_call_outputs_shape_dtype(n: torch.fx.Node) -> tuple[list[torch.Size], list[torch.dtype]]:
    """The shapes and dtypes of what a node gives.

    Raises:
        ValueError: the node was not traced, or gives something else than tensors.
    """
    found = n.meta.get("val")
    values = [found] if isinstance(found, torch.Tensor) else list(found or ())
    if not values or not all(isinstance(each, torch.Tensor) for each in values):
        raise ValueError(f"{n}: expected a traced node that gives tensors, it gives {found!r}")
    return [each.shape for each in values], [each.dtype for each in values]


_library = torch.library.Library("xla", "FRAGMENT")
_library.define("place_to_host(Tensor t) -> Tensor")
_library.define("place_to_device(Tensor t) -> Tensor")


def _place(t: torch.Tensor, where: str) -> torch.Tensor:
    return stablehlo_custom_call(
        [t],
        "annotate_device_placement",
        [t.shape],
        [t.dtype],
        has_side_effect=True,
        frontend_attributes={"_xla_buffer_placement": where},
    )


for _name, _where in (("place_to_host", "pinned_host"), ("place_to_device", "device")):
    _library.impl(_name, lambda t, where=_where: _place(t, where), "XLA")
    _library.impl(_name, lambda t: t.clone(), "CPU")
    _library.impl(_name, torch.empty_like, "Meta")


def to_host_backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    """The gradient of `place_to_host`: as it is."""
    return grad


def to_device_backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    """The gradient of `place_to_device`: as it is."""
    return grad


torch.library.register_autograd("xla::place_to_host", to_host_backward, lib=_library)
torch.library.register_autograd("xla::place_to_device", to_device_backward, lib=_library)


def place_to_host(t: torch.Tensor | None) -> Any:
    """The tensor in the host's memory from here on, where XLA offloads: on TPUs and GPUs. Gradients go through.

    Args:
        t: an xla tensor, or None, which stays None.
    """
    return None if t is None else torch.ops.xla.place_to_host(t)


def place_to_device(t: torch.Tensor | None) -> Any:
    """The tensor in the device's memory again; see `place_to_host`."""
    return None if t is None else torch.ops.xla.place_to_device(t)
