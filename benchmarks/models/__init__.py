"""The models that are timed: the sets `published`, the ten of PyTorch/XLA's tables, and `today`, and `decoding`."""

from __future__ import annotations

import torch

from .decoding import DECODING
from .model import Model, Tensors
from .published import PUBLISHED
from .today import TODAY

IMAGE_SIZE = 224

#: The sets, by their names.
SETS: dict[str, dict[str, Model]] = {"published": PUBLISHED, "today": TODAY}

#: Those of both sets, which stand in the tables.
COMPARED: dict[str, Model] = {**PUBLISHED, **TODAY}

MODELS: dict[str, Model] = {**COMPARED, **DECODING}


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
    """Sets every dropout probability to 0, so that two runs in training mode can be compared; torchvision's layers that
    leave out whole branches at random keep them all.
    """
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout) or type(module).__name__ == "StochasticDepth":
            vars(module)["p"] = 0.0
    return model
