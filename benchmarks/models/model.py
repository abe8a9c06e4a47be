"""What a model of the benchmarks is, and torchvision where its C++ library does not load."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

Tensors = tuple[torch.Tensor, ...]


class Model(NamedTuple):
    """How to make one model and its input.

    Attributes:
        build: () → module with fresh weights.
        inputs: (batch size, image size) → example inputs on the CPU.
        batch_size: the default batch.
        smallest_image: the smallest square image that it takes; None if its input's size is fixed.
        has_batch_norm: whether eager's float32 gradients are too inexact for others to be held to them.
    """

    build: Callable[[], torch.nn.Module]
    inputs: Callable[[int, int], Tensors]
    batch_size: int = 4
    smallest_image: int | None = 32
    has_batch_norm: bool = False


@functools.cache
def torchvision_models() -> Any:
    """`torchvision.models`, also where torchvision's C++ library was built for another torch and does not load.

    Without the library the schemas of its two registered operators are missing and the import fails; the models here
    use neither operator. timm and transformers import torchvision too, so this comes before them.
    """
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        raise ImportError("torchvision is not installed: `make setup` installs what the benchmarks need")
    with contextlib.suppress(OSError):
        for library in Path(spec.origin).parent.glob("_C*.so"):
            torch.ops.load_library(library)
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            _schemas.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torchvision
    return torchvision.models


_schemas = torch.library.Library("torchvision", "FRAGMENT")  # the definitions last as long as this object


def transformers() -> Any:
    """The library, which imports torchvision."""
    torchvision_models()
    import transformers

    return transformers


def vision(name: str) -> Callable[[], torch.nn.Module]:
    """Makes a model of torchvision's with fresh weights."""
    return lambda: getattr(torchvision_models(), name)(weights=None)


def image(batch: int, size: int) -> Tensors:
    """A batch of square images."""
    return (torch.randn(batch, 3, size, size),)


class Output(torch.nn.Module):
    """A model of a library with one tensor of its output as the result.

    Args:
        name: the output's attribute.
        options: further arguments of each call.
    """

    def __init__(self, model: torch.nn.Module, name: str, **options: Any):
        super().__init__()
        self.model = model
        self.name = name
        self.options = options

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return getattr(self.model(*inputs, **self.options), self.name)
