"""That the native part is there and works. A test that skipped itself without it would hide a build that failed, and
where a kernel's trial fails, a kernel that the compiler broke.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from lazy_runtime import native
from lazy_runtime.lowering import aten_bridge

#: For vectors of 512 bits, and oneDNN's products for them, our kernels are written.
HAS_VECTORS = torch.backends.cpu.get_cpu_capability() == "AVX512" and torch.backends.mkldnn.is_available()


def need_bridge() -> None:
    """Loads the bridge and our kernels.

    Raises:
        lazy_runtime.native.NativeError: they are not built; the message says what to do.
    """
    native.bridge()
    for name in native.KERNELS:
        native.kernel(name)
    assert aten_bridge.is_built()


def need_kernel(works: Callable[[], bool], expected: bool = HAS_VECTORS) -> pytest.MarkDecorator:
    """A mark for the tests of a kernel, which skips them on another processor than it is for.

    Args:
        works: whether the kernel's trial succeeds.
        expected: whether it has to on this processor.

    Raises:
        lazy_runtime.native.NativeError: the kernel is not built.
        AssertionError: it does not work, and the processor is one that it is for.
    """
    need_bridge()
    assert works() or not expected, (
        "a kernel's trial fails: run `python -m lazy_runtime.native`, then look at the kernel"
    )
    return pytest.mark.skipif(not works(), reason="the kernel is not for this processor, or torch has no oneDNN")
