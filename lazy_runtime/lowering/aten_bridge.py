"""Torch's own CPU kernels inside XLA:CPU programs, as custom calls (native/bridge.cpp)."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch

from .. import native
from ..compat.torch import disable_current_modes
from ..ir import lowering_context
from . import checks
from .layout import ChannelsLast, HeadsLast, Opaque, Packed, Part, Strided, Transposed

# in the order of c10::MemoryFormat's numbers
_MEMORY_FORMATS = (torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d)

#: Among the arguments of an `.out` overload: what the kernel writes its result to, memory of XLA's.
RESULT = "o"


def available() -> bool:
    """Whether operators that XLA has too are to be called of torch: the bridge is there, and the program that is being
    lowered is no sharded one. XLA can cut its own operators among devices; of a custom call every device does all.
    """
    return not lowering_context.current().is_sharded and is_built()


def release_workers() -> None:
    """Ends the calling thread's workers for torch's kernels, which slow down those of the kernels' own thread."""
    native.bridge().release_workers()


@functools.cache
def is_built() -> bool:
    """Whether the bridge was built for this torch; loads and registers it the first time, and our own kernels, which a
    program that comes from the disk may call too.
    """
    try:
        library = native.bridge()
    except native.NativeError:
        return False
    for name in native.KERNELS:
        with contextlib.suppress(native.NativeError):
            native.kernel(name)
    jax.ffi.register_ffi_target("aten_call", jax.ffi.pycapsule(library.aten_call), platform="cpu")
    return True


def kernel_works(name: str, trial: Callable[[Any], bool]) -> bool:
    """Whether a kernel of ours (`lazy_runtime_kernels::`) is there for this torch, and a trial of it on the CPU
    succeeds: its products, oneDNN's, may not be made for this processor.
    """
    kernels = torch.ops.lazy_runtime_kernels
    if not is_built() or not hasattr(kernels, name):
        return False
    with torch.no_grad(), disable_current_modes(), torch.device("cpu"):
        try:
            return trial(getattr(kernels, name))
        except RuntimeError:
            return False


def call(
    name: str, arguments: Sequence[Any], results: Sequence[Any], then: Sequence[tuple[str, Sequence[Any]]] = ()
) -> list[Any]:
    """Calls an ATen operator inside the program that is being traced.

    Args:
        name: `aten::convolution`, `aten::sum.dim_IntList`.
        arguments: all of the schema's arguments in order: arrays, `ChannelsLast` images (whose memory the kernel sees
            in torch's channels_last format), `Transposed` matrices, `HeadsLast`, `Strided`, `Packed`, `Part` and
            `Opaque` weights, None, numbers, strings, dtypes and the like, lists of these, and `RESULT`.
        results: for each result an array, `ChannelsLast`, `HeadsLast` or `Packed` like it (a `jax.ShapeDtypeStruct` in
            it will do), or None for one that the operator leaves undefined.
        then: operators that go on in place with its one result, and their further arguments, which are no arrays:
            `[("aten::hardtanh_", [0.0, 6.0])]`.

    Returns:
        The results, of the kinds asked for.
    """
    arrays: list[Any] = []
    encoded = [_encode(argument, arrays) for argument in arguments]
    if lowering_context.current().narrows and any(array.dtype == np.int32 for array in arrays):
        raise TypeError(f"{name} takes indices of 64 bits")  # and gets them: `lower` tries again with torch's dtypes
    kinds = "o" * len(results) if RESULT in encoded else "".join(map(_kind, results))
    text = "|".join([name, kinds, *encoded])
    for following, further in then:
        text += "\n" + "|".join([following, "", "n", *map(encode_static, further)])
    wanted = [_buffer(like) for like in results if like is not None]
    made = iter(
        jax.ffi.ffi_call("aten_call", [jax.ShapeDtypeStruct(like.shape, like.dtype) for like in wanted])(
            *arrays,
            call=text,
            number=np.int64(checks.current_call()),
            own_thread=lowering_context.current().has_kernel_thread,
        )
    )
    return [
        None if like is None else type(like)(next(made)) if isinstance(like, ChannelsLast | HeadsLast) else next(made)
        for like in results
    ]


def after(array: Any, others: Sequence[Any]) -> Any:
    """The array, in the same memory, once the others have been computed; who gets it may overwrite it.

    Args:
        array: one that nobody else reads after the others, else XLA copies it.
    """
    buffers = [_buffer(array), *map(_buffer, others)]
    like = jax.ShapeDtypeStruct(buffers[0].shape, buffers[0].dtype)
    # of the operands that the text does not speak of nothing is read
    return jax.ffi.ffi_call("aten_call", like, input_output_aliases={0: 0})(
        *buffers, call="aten::alias|t|t", number=np.int64(checks.current_call()), own_thread=False
    )


_KINDS = {
    type(None): "n",
    ChannelsLast: "a",
    Transposed: "x",
    HeadsLast: "h",
    Packed: "p",
    Part: "m",
    Strided: "m",
    Opaque: "w",
}
_MARKED = tuple(kind for kind in _KINDS if kind is not type(None))


def _kind(like: Any) -> str:
    return _KINDS.get(type(like), "t")


def _buffer(x: Any) -> Any:
    return x.physical if isinstance(x, _MARKED) else x


def _encode(argument: Any, arrays: list[Any]) -> str:
    if argument is RESULT:
        return RESULT
    if isinstance(argument, (*_MARKED, jax.Array)):
        arrays.append(_buffer(argument))
        return _kind(argument) + (argument.text if isinstance(argument, Packed | Part | Strided) else "")
    if isinstance(argument, list | tuple) and any(isinstance(item, ChannelsLast | jax.Array) for item in argument):
        return "L" + "".join(_encode(item, arrays) for item in argument)
    return encode_static(argument)


def encode_static(argument: Any) -> str:
    """An argument that is no tensor, as native/call_text.h reads it.

    Raises:
        TypeError: the bridge takes no such argument.
    """
    if argument is None or isinstance(argument, torch.Generator):
        return "n"
    if isinstance(argument, bool):
        return f"b{int(argument)}"
    if isinstance(argument, int):
        return f"i{argument}"
    if isinstance(argument, float):
        return f"d{argument.hex()}"
    if isinstance(argument, complex):
        return f"c{argument.real.hex()},{argument.imag.hex()}"
    if isinstance(argument, torch.dtype):
        return f"D{str(argument).removeprefix('torch.')}"
    if isinstance(argument, torch.device):
        return "V"
    if argument is torch.strided:
        return "i0"
    if isinstance(argument, torch.memory_format):
        return f"i{_MEMORY_FORMATS.index(argument)}"
    if isinstance(argument, str) and "|" not in argument:
        return f"s{argument}"
    if isinstance(argument, list | tuple) and all(isinstance(item, int) for item in argument):
        flags = bool(argument) and isinstance(argument[0], bool)
        return ("B" if flags else "I") + ",".join(str(int(item)) for item in argument)
    if isinstance(argument, list | tuple) and all(isinstance(item, int | float) for item in argument):
        return "F" + ",".join(float(item).hex() for item in argument)
    raise TypeError(f"the ATen bridge takes no argument of type {type(argument).__name__}: {argument!r}")
