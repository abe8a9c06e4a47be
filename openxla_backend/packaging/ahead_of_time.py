"""torch's own way to ship a compiled function: `torch.compile(model, fullgraph=True).aot_compile(...)` and then
`save_compiled_function(path)`. Torch writes a pickle; the program in it is a package without weights.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from lazy_runtime.compat.dynamo import SerializableCallable
from lazy_runtime.compat.tracing import detect_fake_mode, functorch_config


def is_asked_for() -> bool:
    """Whether torch compiles what is to be saved."""
    return bool(getattr(functorch_config, "bypass_autograd_cache_key", False) and functorch_config.force_autograd_cache)


def without_cache() -> contextlib.AbstractContextManager[Any]:
    """Within it AOTAutograd keeps nothing of what it compiles: torch asks for that, and knows inductor's code alone."""
    if not is_asked_for():
        return contextlib.nullcontext()
    return functorch_config.patch(force_autograd_cache=False, strict_autograd_cache=False, bundled_autograd_cache=False)


class SavedFunction(SerializableCallable):
    """A compiled graph that can be saved.

    Args:
        run: what calls do.
        gm: the graph that Dynamo has made, and its example arguments; None in a process that has loaded it.
    """

    def __init__(self, run: Callable[..., Any], gm: torch.fx.GraphModule | None = None, examples: Sequence[Any] = ()):
        self._run = run
        self._gm = gm
        self._examples = examples
        self._differentiates = torch.is_grad_enabled() and any(
            isinstance(each, torch.Tensor) and each.requires_grad for each in examples
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the graph gives."""
        return self._run(*args, **kwargs)

    @classmethod
    def serialize_compile_artifacts(cls, fn: SavedFunction) -> bytes:
        """The program as bytes.

        Raises:
            NotImplementedError: it has a backward pass, symbolic sizes, or does what a package cannot hold.
        """
        if fn._gm is None:
            raise NotImplementedError("the function was loaded itself: keep the file that it came from")
        if fn._differentiates:
            raise NotImplementedError(
                "only inference can be saved: call aot_compile under torch.no_grad(), or freeze the parameters"
            )
        from . import archive, capture, saving  # the backend itself, which imports this module, needs none of them

        mode = detect_fake_mode(fn._examples)
        contents = saving.contents_of(capture.of_graph(fn._gm, fn._examples, mode))
        return archive.dump(contents)

    @classmethod
    def deserialize_compile_artifacts(cls, data: bytes) -> SavedFunction:
        """The function again. Torch has unpickled the file before: it is trusted or it is too late.

        Raises:
            archive.PackageError: it was made for other versions or another processor or device.
        """
        from . import archive, requirements
        from .running import LoadedProgram

        contents = archive.parse(data)
        device = requirements.device_of(contents.description, "the saved function")
        program = LoadedProgram(contents, device)
        return cls(lambda *tensors: tuple(program(tensors)))
