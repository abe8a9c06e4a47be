"""Pallas kernels of a user's own as functions of xla tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ....functions import jax_function
from ....ir import dtypes
from ....platform import xla_devices

__all__ = [
    "convert_torch_dtype_to_jax",
    "generate_ctx_need_grad",
    "make_kernel_from_pallas",
    "safe_empty_like",
    "to_jax_shape_dtype_struct",
    "trace_pallas",
]


def convert_torch_dtype_to_jax(dtype: torch.dtype) -> Any:
    """The jax dtype (a numpy dtype) of a torch dtype.

    Raises:
        ValueError: XLA has none.
    """
    try:
        return dtypes.to_numpy(dtype)
    except TypeError as error:
        raise ValueError(str(error)) from None


def to_jax_shape_dtype_struct(tensor: torch.Tensor) -> Any:
    """A tensor's shape and dtype as `jax.ShapeDtypeStruct`.

    Raises:
        ValueError: XLA has no such dtype.
    """
    import jax

    return jax.ShapeDtypeStruct(tuple(tensor.shape), convert_torch_dtype_to_jax(tensor.dtype))


def generate_ctx_need_grad(*args: Any) -> list[bool]:
    """For each argument, whether it is a tensor that requires a gradient."""
    return [isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args]


def safe_empty_like(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """`torch.empty_like`, and None of None."""
    return None if tensor is None else torch.empty_like(tensor)


_PAYLOAD = re.compile(r'custom_call @tpu_custom_call\(.*?backend_config = "((?:[^"\\]|\\.)*)"')
_payloads: dict[Any, str] = {}


def trace_pallas(
    kernel: Callable[..., Any],
    *args: Any,
    static_argnums: Any = None,
    static_argnames: Any = None,
    use_cache: bool = False,
    **kwargs: Any,
) -> tuple[str, list[torch.Tensor]]:
    """What a TPU is told to run for a Pallas kernel: jax lowers it for TPUs, on any platform.

    Args:
        kernel: a function of jax arrays that calls one Pallas kernel.
        args: its arguments, tensors in place of arrays.
        static_argnums, static_argnames: see `jax.jit`.
        use_cache: keep the result for the same kernel and the same looks of its arguments.
        kwargs: more arguments.

    Returns:
        the `backend_config` of the kernel's `tpu_custom_call`, JSON text, and the tensors among the arguments.

    Raises:
        ValueError: the function calls no Pallas kernel.
    """
    import jax

    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    traced = [to_jax_shape_dtype_struct(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
    key = kernel, repr(static_argnums), repr(static_argnames), repr(traced), repr(sorted(kwargs.items()))
    if use_cache and key in _payloads:
        return _payloads[key], tensors
    jitted = jax.jit(kernel, static_argnums=static_argnums, static_argnames=static_argnames)
    text = jitted.trace(*traced, **kwargs).lower(lowering_platforms=("tpu",)).as_text()
    found = _PAYLOAD.search(text)
    if found is None:
        raise ValueError(f"trace_pallas: {kernel} calls no Pallas kernel that a TPU could run")
    payload = re.sub(r"\\([0-9A-Fa-f]{2})", lambda byte: chr(int(byte[1], 16)), found[1])
    if use_cache:
        _payloads[key] = payload
    return payload, tensors


def make_kernel_from_pallas(
    kernel: Callable[..., Any], output_shape_dtype_fn: Callable[..., Sequence[tuple[Sequence[int], torch.dtype]]]
) -> Callable[..., Any]:
    """A Pallas kernel as a function of xla tensors, without gradients. Where there is no TPU, jax interprets it.

    Args:
        kernel: of jax arrays and other values, to an array or several.
        output_shape_dtype_fn: of the function's arguments, to the shape and torch dtype of each result.

    Returns:
        a function of tensors and other values, to a tensor or a tuple of them. It takes `static_argnums` and
        `static_argnames` too; all that is no tensor is static.

    Raises:
        RuntimeError: (the function made) the kernel's results have other shapes or dtypes.
    """

    def called(*args: Any, static_argnums: Any = None, static_argnames: Any = None, **kwargs: Any) -> Any:
        places = [place for place, arg in enumerate(args) if isinstance(arg, torch.Tensor)]
        tensors = [args[place] for place in places]
        expected = [(tuple(shape), dtype) for shape, dtype in output_shape_dtype_fn(*args)]

        def flat(*arrays: Any) -> list[Any]:
            import jax

            filled = list(args)
            for place, array in zip(places, arrays, strict=True):
                filled[place] = array
            with _interpreted():
                return jax.tree.leaves(kernel(*filled, **kwargs))

        rest = tuple(None if isinstance(arg, torch.Tensor) else arg for arg in args)
        key = kernel, repr(rest), repr(sorted(kwargs.items())), tuple(places)
        made = jax_function.call(flat, tensors, key, getattr(kernel, "__name__", "pallas"))
        found = [(tuple(each.shape), each.dtype) for each in made]
        if found != expected:
            raise RuntimeError(f"make_kernel_from_pallas: expected {expected} of {kernel}, got {found}")
        return made[0] if len(made) == 1 else tuple(made)

    return called


def _interpreted() -> Any:
    """In this context jax's Pallas runs kernels for TPUs where there is none."""
    import contextlib

    if xla_devices.get(0).platform == "tpu":
        return contextlib.nullcontext()
    from jax.experimental.pallas import tpu

    return tpu.force_tpu_interpret_mode()
