"""The ten models of PyTorch/XLA's published tables, with fresh weights: nothing is downloaded."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

IMAGE_SIZE = 224
BERT_VOCABULARY, BERT_LENGTH = 20_000, 128

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
def _torchvision_models() -> Any:
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


def _vision(name: str) -> Callable[[], torch.nn.Module]:
    return lambda: getattr(_torchvision_models(), name)(weights=None)


def _image(batch: int, size: int) -> Tensors:
    return (torch.randn(batch, 3, size, size),)


def _vit() -> torch.nn.Module:
    _torchvision_models()
    import timm

    return timm.create_model("vit_small_patch16_224", pretrained=False)


class _LastHiddenState(torch.nn.Module):
    """BERT with one tensor as its output, as the other models have it."""

    def __init__(self, bert: torch.nn.Module):
        super().__init__()
        self.bert = bert

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.bert(tokens).last_hidden_state


def _bert() -> torch.nn.Module:
    _torchvision_models()
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=BERT_VOCABULARY,
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=3072,
        max_position_embeddings=BERT_LENGTH,
    )
    return _LastHiddenState(BertModel(config, add_pooling_layer=False))


def _tokens(batch: int, size: int) -> Tensors:
    return (torch.randint(0, BERT_VOCABULARY, (batch, BERT_LENGTH)),)


MODELS: dict[str, Model] = {
    "resnet18": Model(_vision("resnet18"), _image, has_batch_norm=True),
    "resnet50": Model(_vision("resnet50"), _image, has_batch_norm=True),
    "resnext50_32x4d": Model(_vision("resnext50_32x4d"), _image, has_batch_norm=True),
    "alexnet": Model(_vision("alexnet"), _image, smallest_image=64),
    "mobilenet_v2": Model(_vision("mobilenet_v2"), _image, has_batch_norm=True),
    "mnasnet1_0": Model(_vision("mnasnet1_0"), _image, has_batch_norm=True),
    "vgg16": Model(_vision("vgg16"), _image),
    "BERT_pytorch": Model(_bert, _tokens, batch_size=2, smallest_image=None),
    "squeezenet1_1": Model(_vision("squeezenet1_1"), _image),
    "timm_vision_transformer": Model(_vit, lambda batch, size: _image(batch, 224), smallest_image=None),
}


def build(name: str, seed: int = 0) -> torch.nn.Module:
    """The named model with weights that depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MODELS[name].build()


def example(name: str, batch_size: int | None = None, image_size: int = IMAGE_SIZE, seed: int = 3) -> Tensors:
    """Inputs of the named model that depend on the seed alone.

    With the default seed, torch's own gradients in two memory formats are close for every model. At a near tie in a
    ReLU or a max pool they are not, whoever computes: 1.3e-3 apart for alexnet with seed 1.

    Args:
        batch_size: the model's default batch if None.
        image_size: of no account where the input's size is fixed.

    Raises:
        ValueError: the model does not take images this small.
    """
    model = MODELS[name]
    if model.smallest_image is not None and image_size < model.smallest_image:
        raise ValueError(f"{name} takes images of at least {model.smallest_image} pixels a side, got {image_size}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return model.inputs(batch_size or model.batch_size, image_size)


def without_dropout(model: torch.nn.Module) -> torch.nn.Module:
    """Sets every dropout probability to 0, so that two runs in training mode can be compared."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model
