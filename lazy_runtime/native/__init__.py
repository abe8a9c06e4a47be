"""Loads the C++ part: the device guard that makes torch accept tensors on `xla`, its kernel for operators that write,
kernels for sparse tensors, convolutions, attention, the ATen bridge, what is asked of many tensors, and recording.
"""

from __future__ import annotations

import ctypes
import functools

from . import libraries
from .build import KERNELS as KERNELS
from .libraries import NativeError as NativeError
from .libraries import ensure as ensure


def _library(stem: str, kind: type[ctypes.CDLL] = ctypes.CDLL) -> ctypes.CDLL:
    return libraries.load(stem, libraries.torch_version(), kind)


def has_guard() -> bool:
    """Whether the device guard's library has been built for this torch."""
    return libraries.find("guard", libraries.torch_version()) is not None


@functools.cache
def guard() -> ctypes.CDLL:
    """The device guard's library; loading it registers the guard, with 0 devices.

    Raises:
        NativeError: it cannot be built for this torch.
    """
    library = _library("guard")
    library.xla_thread_state.restype = ctypes.c_void_p
    library.xla_end_thread_state.argtypes = ctypes.c_void_p, ctypes.c_bool
    return library


@functools.cache
def writes() -> ctypes.CDLL:
    """The library of the kernel for operators that write.

    Raises:
        NativeError: it cannot be built for this torch.
    """
    return _library("in_place")


@functools.cache
def sparse() -> ctypes.CDLL:
    """The library of the kernels for sparse tensors.

    Raises:
        NativeError: it cannot be built for this torch.
    """
    return _library("sparse")


@functools.cache
def kernel(name: str) -> ctypes.CDLL:
    """The library of one of `KERNELS`.

    Raises:
        NativeError: it cannot be built for this torch.
    """
    return _library(name)


@functools.cache
def tensors() -> ctypes.CDLL:
    """The library of what is asked of hundreds of tensors in one call, as a list or a tuple, with Python's lock held.

    Raises:
        NativeError: it cannot be built for this torch.
    """
    library = _library("tensors", ctypes.PyDLL)
    functions = (
        (library.inner_tensor, 2),
        (library.inner_tensors, 1),
        (library.know_tensors, 1),
        (library.are_same, 2),
        (library.make_all_resizable, 1),
        (library.sharing, 2),
    )
    for function, count in functions:
        function.argtypes, function.restype = [ctypes.py_object] * count, ctypes.py_object
    return library


@functools.cache
def recording() -> ctypes.CDLL:
    """The library of the hot path of lazy mode, called with Python's lock held.

    Raises:
        NativeError: it cannot be built for this torch.
    """
    library = _library("recording", ctypes.PyDLL)
    library.make_dispatch.argtypes, library.make_dispatch.restype = [], ctypes.py_object
    return library


@functools.cache
def bridge() -> ctypes.CDLL:
    """The ATen bridge's library: handlers for XLA:CPU's custom calls.

    Raises:
        NativeError: it cannot be built for this torch.
    """
    return _library("bridge")
