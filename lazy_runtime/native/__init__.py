"""Loads the C++ part: the device guard that makes torch accept tensors on `xla`, its kernel for operators that write,
kernels for sparse tensors, convolutions, attention, the ATen bridge, what is asked of many tensors, and recording."""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
from pathlib import Path

from .build import KERNELS as KERNELS
from .build import library_name

HERE = Path(__file__).resolve().parent


class NativeError(RuntimeError):
    """The C++ part is missing or was built for another torch; the message is one sentence that says what to do."""


@functools.cache
def _torch_version() -> str:
    """What is installed, from its metadata: to read them takes longer than to load a library."""
    return importlib.metadata.version("torch")


def _library(stem: str, version: str, kind: type[ctypes.CDLL] = ctypes.CDLL) -> ctypes.CDLL:
    path = HERE / library_name(stem, version)
    if not path.exists():
        others = sorted(other.name for other in HERE.glob(f"{stem}-*.so"))
        found = f"was built for another version ({', '.join(others)})" if others else "is not built"
        raise NativeError(
            f"the C++ part of lazy_runtime {found} and this is version {version}: "
            "run `python -m lazy_runtime.native` (it needs a C++ compiler) and start again"
        )
    try:
        return kind(str(path))
    except OSError as error:
        raise NativeError(
            f"{path.name} does not load ({error}): run `python -m lazy_runtime.native` and start again"
        ) from error


@functools.cache
def guard() -> ctypes.CDLL:
    """The device guard's library; loading it registers the guard, with 0 devices.

    Raises:
        NativeError: it was not built for this torch.
    """
    return _library("guard", _torch_version())


@functools.cache
def writes() -> ctypes.CDLL:
    """The library of the kernel for operators that write.

    Raises:
        NativeError: it was not built for this torch.
    """
    return _library("writes", _torch_version())


@functools.cache
def sparse() -> ctypes.CDLL:
    """The library of the kernels for sparse tensors.

    Raises:
        NativeError: it was not built for this torch.
    """
    return _library("sparse", _torch_version())


@functools.cache
def kernel(name: str) -> ctypes.CDLL:
    """The library of one of `KERNELS`.

    Raises:
        NativeError: it was not built for this torch.
    """
    return _library(name, _torch_version())


@functools.cache
def tensors() -> ctypes.CDLL:
    """The library of what is asked of hundreds of tensors in one call, as a list or a tuple, with Python's lock held.

    Raises:
        NativeError: it was not built for this torch.
    """
    library = _library("tensors", _torch_version(), ctypes.PyDLL)
    functions = ((library.inner_tensors, 1), (library.know_tensors, 1), (library.are_same, 2), (library.sharing, 2))
    for function, count in functions:
        function.argtypes, function.restype = [ctypes.py_object] * count, ctypes.py_object
    return library


@functools.cache
def recording() -> ctypes.CDLL:
    """The library of the hot path of lazy mode, called with Python's lock held.

    Raises:
        NativeError: it was not built for this torch.
    """
    library = _library("recording", _torch_version(), ctypes.PyDLL)
    library.make_dispatch.argtypes, library.make_dispatch.restype = [], ctypes.py_object
    return library


@functools.cache
def bridge() -> ctypes.CDLL:
    """The ATen bridge's library: handlers for XLA:CPU's custom calls.

    Raises:
        NativeError: it was not built for this torch.
    """
    return _library("bridge", _torch_version())
