"""Errors that name the line of the user's program that they come from."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch

from lazy_runtime.common import errors


@contextlib.contextmanager
def located(node: torch.fx.Node) -> Iterator[None]:
    """Adds the user's line that `node` comes from to the message of an exception raised inside. Of code that torch has
    generated, the user knows the call.
    """
    try:
        yield
    except Exception as error:
        line = user_line(node)
        if line.startswith(_GENERATED) and (call := errors.user_line()):
            line += f"\n  called at {call}"
        if line and len(error.args) == 1 and isinstance(error.args[0], str):
            error.args = (f"{error.args[0]}\n  at {line}",)
        raise


_GENERATED = 'File "<eval_with_key>'  # the file name that torch.fx gives to the code of a GraphModule
_TORCH = os.path.dirname(torch.__file__) + os.sep


def user_line(node: torch.fx.Node) -> str:
    """The innermost frame outside of torch, of those that Dynamo keeps: `File "x.py", line 3, in f: ...`."""
    lines = [line.strip() for line in (node.meta.get("stack_trace") or "").splitlines() if line.strip()]
    frames = [": ".join(lines[n : n + 2]) for n, line in enumerate(lines) if line.startswith("File ")]
    outside = [frame for frame in frames if _TORCH not in frame]
    return (outside or frames or [""])[-1]
