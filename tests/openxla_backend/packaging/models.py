"""Models of transformers that are small, and the arguments of a call of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from benchmarks.models.model import transformers


class Case(NamedTuple):
    """A model and a call of it."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


_LAYERS: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
_SIZES = {**_LAYERS, "vocab_size": 100}
_GROUPED = {**_SIZES, "num_key_value_heads": 2}


def _of_text(model: str, config: str, **sizes: Any) -> Callable[[], Case]:
    def make() -> Case:
        ids = torch.randint(0, 100, (2, 16))
        mask = torch.ones_like(ids)
        mask[1, 10:] = 0
        return Case(_made(model, config, sizes), (), {"input_ids": ids, "attention_mask": mask})

    return make


def _of_decoder(model: str, config: str, **sizes: Any) -> Callable[[], Case]:
    def make() -> Case:
        ids = torch.randint(0, 100, (2, 16))
        return Case(_made(model, config, sizes), (ids,), {"use_cache": False})

    return make


def _of_images(pixels: int, model: str, config: str, **sizes: Any) -> Callable[[], Case]:
    return lambda: Case(_made(model, config, sizes), (torch.randn(2, 3, pixels, pixels),), {})


def _made(model: str, config: str, sizes: dict[str, Any]) -> nn.Module:
    library = transformers()
    return getattr(library, model)(getattr(library, config)(**sizes)).eval()


TRANSFORMERS: dict[str, Callable[[], Case]] = {
    "bert": _of_text("BertModel", "BertConfig", **_SIZES),
    "roberta": _of_text("RobertaForSequenceClassification", "RobertaConfig", **_SIZES),
    "electra": _of_text("ElectraModel", "ElectraConfig", **_SIZES, embedding_size=32),
    "t5": _of_text(
        "T5EncoderModel", "T5Config", d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=100
    ),
    "distilbert": _of_text(
        "DistilBertModel", "DistilBertConfig", dim=32, n_layers=2, n_heads=4, hidden_dim=64, vocab_size=100
    ),
    "gpt2": _of_decoder(
        "GPT2LMHeadModel", "GPT2Config", n_embd=32, n_layer=2, n_head=4, vocab_size=100, n_positions=64
    ),
    "llama": _of_decoder("LlamaForCausalLM", "LlamaConfig", **_GROUPED),
    "qwen3": _of_decoder("Qwen3ForCausalLM", "Qwen3Config", **_GROUPED, head_dim=8),
    "mixtral": _of_decoder("MixtralForCausalLM", "MixtralConfig", **_GROUPED, num_local_experts=4),
    "vit": _of_images(32, "ViTForImageClassification", "ViTConfig", **_LAYERS, image_size=32, patch_size=8),
    # 2x2 features at the end: of sizes of 1, torch's kernels and their meta kernels give other strides
    "convnext": _of_images(64, "ConvNextModel", "ConvNextConfig", hidden_sizes=[8, 16, 32, 64], depths=[1, 1, 2, 1]),
}
