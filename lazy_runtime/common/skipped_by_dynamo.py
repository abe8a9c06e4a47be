"""What Dynamo must not look at.

After a graph break Dynamo compiles each Python function that is called with tensors or numpy arrays in its frame, and
our kernels, called from an operator, are such functions. It skips our files and jax's
(`openxla_backend/dynamo/traced_files.py`), but not what these packages generate, which belongs to no file: the
`__init__` of a dataclass.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from ..compat.torch import set_eval_frame

P = ParamSpec("P")
R = TypeVar("R")


def skip(function: Callable[P, R]) -> Callable[P, R]:
    """The function, without Dynamo's eyes on what it calls. `torch.compiler.disable` would import Dynamo."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        callback = set_eval_frame(None)
        try:
            return function(*args, **kwargs)
        finally:
            set_eval_frame(callback)

    return run
