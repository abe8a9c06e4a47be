"""The ten models of PyTorch/XLA's published tables, with fresh weights: nothing is downloaded."""

from __future__ import annotations

import torch

from .model import Model, Output, Tensors, image, torchvision_models, transformers, vision

BERT_VOCABULARY, BERT_LENGTH = 20_000, 128


def _vit() -> torch.nn.Module:
    torchvision_models()
    import timm

    return timm.create_model("vit_small_patch16_224", pretrained=False)


def _bert() -> torch.nn.Module:
    library = transformers()
    config = library.BertConfig(
        vocab_size=BERT_VOCABULARY,
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=3072,
        max_position_embeddings=BERT_LENGTH,
    )
    return Output(library.BertModel(config, add_pooling_layer=False), "last_hidden_state")


def _tokens(batch: int, size: int) -> Tensors:
    return (torch.randint(0, BERT_VOCABULARY, (batch, BERT_LENGTH)),)


PUBLISHED: dict[str, Model] = {
    "resnet18": Model(vision("resnet18"), image, has_batch_norm=True),
    "resnet50": Model(vision("resnet50"), image, has_batch_norm=True),
    "resnext50_32x4d": Model(vision("resnext50_32x4d"), image, has_batch_norm=True),
    "alexnet": Model(vision("alexnet"), image, smallest_image=64),
    "mobilenet_v2": Model(vision("mobilenet_v2"), image, has_batch_norm=True),
    "mnasnet1_0": Model(vision("mnasnet1_0"), image, has_batch_norm=True),
    "vgg16": Model(vision("vgg16"), image),
    "BERT_pytorch": Model(_bert, _tokens, batch_size=2, smallest_image=None),
    "squeezenet1_1": Model(vision("squeezenet1_1"), image),
    "timm_vision_transformer": Model(_vit, lambda batch, size: image(batch, 224), smallest_image=None),
}
