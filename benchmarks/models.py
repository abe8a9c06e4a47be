"""The ten models of PyTorch/XLA's published tables, with fresh weights: nothing is downloaded."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

IMAGE_SIZE = 224
CLASSES = 1000


class Model(NamedTuple):
    """How to make one model and its input.

    Attributes:
        build: () → module with fresh weights.
        inputs: (batch size, image size) → example inputs on the CPU.
        batch_size: the default batch.
        smallest_image: the smallest square image that it takes; None if it takes no images.
        has_batch_norm: whether float32 gradients are held to the wider bound.
    """

    build: Callable[[], torch.nn.Module]
    inputs: Callable[[int, int], tuple[torch.Tensor, ...]]
    batch_size: int = 4
    smallest_image: int | None = 32
    has_batch_norm: bool = False


def _torchvision() -> Any:
    """torchvision's models, also where its C++ library does not load beside a CPU build of torch.

    Without the library the schemas of its two registered operators are missing and the import fails; the models here
    use neither.
    """
    for schema in (
        "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
        "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    ):
        if not _library_loads():
            _define("torchvision", schema)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torchvision

    return torchvision.models


_libraries: dict[str, torch.library.Library] = {}


def _define(namespace: str, schema: str) -> None:
    name = schema.partition("(")[0]
    if hasattr(getattr(torch.ops, namespace), name):
        return
    if namespace not in _libraries:
        _libraries[namespace] = torch.library.Library(namespace, "FRAGMENT")
    _libraries[namespace].define(schema)


def _library_loads() -> bool:
    import importlib.util
    from pathlib import Path

    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        raise ImportError("torchvision is not installed: `make setup` installs what the benchmarks need")
    libraries = list(Path(spec.origin).parent.glob("_C*.so"))
    try:
        for library in libraries:
            torch.ops.load_library(library)
    except OSError:
        return False
    return bool(libraries)


def _image(batch: int, size: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(batch, 3, size, size),)


def _vision(name: str) -> Callable[[], torch.nn.Module]:
    return lambda: getattr(_torchvision(), name)(weights=None)


def _vit() -> torch.nn.Module:
    _torchvision()  # timm imports it
    import timm

    return timm.create_model("vit_small_patch16_224", pretrained=False)


class _Pooled(torch.nn.Module):
    """BERT's pooled output as the one tensor to compare."""

    def __init__(self, bert: torch.nn.Module):
        super().__init__()
        self.bert = bert

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.bert(tokens).last_hidden_state


BERT_VOCABULARY, BERT_LENGTH = 20_000, 128


def _bert() -> torch.nn.Module:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=BERT_VOCABULARY,
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=3072,
        max_position_embeddings=BERT_LENGTH,
    )
    return _Pooled(BertModel(config, add_pooling_layer=False))


def _tokens(batch: int, size: int) -> tuple[torch.Tensor, ...]:
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
    "timm_vision_transformer": Model(_vit, _image, smallest_image=None),
}


def build(name: str, seed: int = 0) -> torch.nn.Module:
    """The named model with weights that depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MODELS[name].build()


def example(name: str, batch_size: int | None = None, image_size: int = IMAGE_SIZE, seed: int = 1) -> Sequence[torch.Tensor]:
    """Inputs of the named model that depend on the seed alone."""
    model = MODELS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return model.inputs(batch_size or model.batch_size, image_size)


def without_dropout(model: torch.nn.Module) -> torch.nn.Module:
    """Sets every dropout probability to 0, so that two runs in training mode can be compared."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name in ("attn_drop", "attention_probs_dropout_prob", "dropout_prob"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model
