"""Real models with few and narrow layers: torchvision's, timm's, and transformers', many of these with tied weights."""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from benchmarks.models.model import torchvision_models

VOCABULARY, LENGTH, CLASSES = 37, 9, 5


class Model(NamedTuple):
    """How to make one model and its input.

    Attributes:
        build: () → module with fresh weights.
        inputs: batch size → arguments by name.
        tolerance: how far from eager's its numbers may be, of the largest of a tensor.
    """

    build: Callable[[], torch.nn.Module]
    inputs: Callable[[int], dict[str, torch.Tensor]]
    tolerance: float = 1e-9


#: Of models that compute a part in float32, whatever the dtype of their weights: an RMS norm, the angles of rotary
#: embeddings, a state. The last bit of those may be another one here.
IN_FLOAT32 = 1e-5

MODELS: dict[str, Model] = {}


def images(size: int, argument: str = "x") -> Callable[[int], dict[str, torch.Tensor]]:
    """Square images of `size` pixels a side."""
    return lambda batch: {argument: torch.randn(batch, 3, size, size, dtype=torch.float64)}


def tokens(*arguments: str) -> Callable[[int], dict[str, torch.Tensor]]:
    """Sequences of LENGTH tokens, one for each argument. None of them is 0, which pads."""
    return lambda batch: {name: torch.randint(1, VOCABULARY, (batch, LENGTH)) for name in arguments}


# torchvision


def vision(module: str, size: int = 32) -> Callable[[Callable[[Any], Any]], Any]:
    """Adds a model that a function makes of the module `torchvision.models.<module>`."""

    def add(build: Callable[[Any], Any]) -> Any:
        def make() -> torch.nn.Module:
            torchvision_models()
            return build(importlib.import_module(f"torchvision.models.{module}"))

        MODELS[f"torchvision.{build.__name__}"] = Model(make, images(size))
        return build

    return add


@vision("resnet", 40)
def resnet(models: Any) -> Any:
    return models.ResNet(models.BasicBlock, [1, 1, 1, 1], num_classes=CLASSES)


@vision("resnet", 40)
def resnext(models: Any) -> Any:
    return models.ResNet(models.Bottleneck, [1, 1, 1, 1], num_classes=CLASSES, groups=4, width_per_group=4)


@vision("densenet")
def densenet(models: Any) -> Any:
    return models.DenseNet(4, (2, 2), num_init_features=8, num_classes=CLASSES)


@vision("mobilenetv2")
def mobilenet_v2(models: Any) -> Any:
    return models.MobileNetV2(CLASSES, 0.25, [[1, 16, 1, 1], [6, 24, 2, 2], [6, 32, 1, 2]])


@vision("mobilenetv3")
def mobilenet_v3(models: Any) -> Any:
    block = functools.partial(models.InvertedResidualConfig, dilation=1, width_mult=1.0)
    layers = [
        block(8, 3, 16, 8, True, "RE", stride=2),
        block(8, 5, 24, 16, True, "HS", stride=2),
        block(16, 3, 32, 16, False, "HS", stride=1),
    ]
    return models.MobileNetV3(layers, 32, CLASSES, dropout=0.0)


@vision("shufflenetv2", 64)
def shufflenet_v2(models: Any) -> Any:
    return models.ShuffleNetV2([2, 1, 1], [8, 16, 24, 32, 48], CLASSES)


@vision("squeezenet")
def squeezenet(models: Any) -> Any:
    return models.SqueezeNet("1_1", CLASSES, dropout=0.0)


@vision("efficientnet")
def efficientnet(models: Any) -> Any:
    layers = [models.MBConvConfig(1, 3, 1, 8, 8, 1, 1, 1), models.MBConvConfig(4, 5, 2, 8, 16, 2, 1, 1)]
    return models.EfficientNet(layers, 0.0, 0.0, CLASSES, last_channel=32)


@vision("regnet")
def regnet(models: Any) -> Any:
    parameters = models.BlockParams.from_init_params(depth=4, w_0=8, w_a=8.0, w_m=2.0, group_width=4, se_ratio=0.25)
    return models.RegNet(parameters, CLASSES, stem_width=8)


@vision("convnext")
def convnext(models: Any) -> Any:
    return models.ConvNeXt([models.CNBlockConfig(8, 16, 1), models.CNBlockConfig(16, None, 1)], num_classes=CLASSES)


@vision("swin_transformer")
def swin(models: Any) -> Any:
    return models.SwinTransformer([4, 4], 8, [2, 2], [2, 2], [2, 2], stochastic_depth_prob=0.0, num_classes=CLASSES)


@vision("vision_transformer", 16)
def vit(models: Any) -> Any:
    return models.VisionTransformer(16, 4, 2, 2, 16, 32, num_classes=CLASSES)


@vision("maxvit")
def maxvit(models: Any) -> Any:
    return models.MaxVit((32, 32), 8, 2, [8, 16], [1, 1], 4, 0.0, num_classes=CLASSES)


# timm


def timm(name: str, size: int = 32, module: str | None = None, **arguments: Any) -> None:
    """Adds a model of timm's.

    Args:
        name: of a model, which takes other arguments than its usual ones, or of a class in `module`.
    """

    def make() -> torch.nn.Module:
        torchvision_models()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import timm

            if module is None:
                return timm.create_model(name, pretrained=False, **{"num_classes": CLASSES, **arguments})
            source = importlib.import_module(f"timm.models.{module}")
            of_source = {key: _find(source, value) for key, value in arguments.items()}
            return getattr(source, name)(num_classes=CLASSES, **of_source)

    kinds = [value[-1] if isinstance(value, tuple) else value for value in arguments.values()]
    MODELS["-".join([f"timm.{name}", *filter(_is_class, kinds)])] = Model(make, images(size))


def _is_class(value: Any) -> bool:
    return isinstance(value, str) and value[0].isupper()


def _find(source: Any, value: Any) -> Any:
    """The class of a module that a name stands for; other values as they are."""
    if isinstance(value, tuple):
        return tuple(_find(source, each) for each in value)
    return getattr(source, value) if _is_class(value) else value


_FOUR: dict[str, Any] = {"depths": (1, 1, 1, 1)}
_DIMS: dict[str, Any] = {**_FOUR, "dims": (8, 16, 24, 32)}
_EMBEDDED: dict[str, Any] = {**_FOUR, "embed_dims": (8, 16, 24, 32), "num_heads": (1, 2, 2, 2)}
_PATCHES: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 16}
# without its head, whose batch norm over images alone refuses to be trained on one
timm(
    "levit_128s",
    128,
    num_classes=0,
    embed_dim=(16, 24, 32),
    key_dim=8,
    num_heads=(2, 2, 2),
    depth=(1, 1, 1),
    img_size=128,
)
timm("xcit_nano_12_p16_224", img_size=32, embed_dim=16, depth=1, num_heads=2, cls_attn_layers=1, use_pos_embed=False)
timm("convnext_atto", 64, **_DIMS)
timm("MetaFormer", 64, "metaformer", token_mixers="Pooling", norm_layers="GroupNorm1", **_DIMS)
timm("MetaFormer", 64, "metaformer", token_mixers="SepConv", norm_layers="LayerNorm2dNoBias", **_DIMS)
timm(
    "MetaFormer", 64, "metaformer", token_mixers=("SepConv", "SepConv", "Attention", "Attention"),
    norm_layers=("LayerNorm2dNoBias", "LayerNorm2dNoBias", "LayerNormNoBias", "LayerNormNoBias"),
    depths=(1, 1, 1, 1), dims=(8, 16, 32, 64),
)  # fmt: skip
timm("ConvMixer", 32, "convmixer", dim=16, depth=2, kernel_size=3, patch_size=4)
timm("MlpMixer", 32, "mlp_mixer", num_blocks=2, block_layer="MixerBlock", **_PATCHES)
timm(
    "MlpMixer",
    32,
    "mlp_mixer",
    num_blocks=2,
    block_layer="SpatialGatingBlock",
    mlp_layer="GatedMlp",
    mlp_ratio=4,
    **_PATCHES,
)
timm("MlpMixer", 32, "mlp_mixer", num_blocks=2, block_layer="ResBlock", mlp_ratio=4, norm_layer="Affine", **_PATCHES)
timm("edgenext_xx_small", 64, depths=(1, 1, 2, 2), dims=(8, 16, 24, 32), heads=(2, 2, 2, 2), use_pos_emb=(False,) * 4)
timm("pvt_v2_b0", 64, **_EMBEDDED)
timm("cait_xxs24_224", img_size=32, embed_dim=16, depth=1, num_heads=2, depth_token_only=1)
timm("convit_tiny", depth=2, num_heads=2, local_up_to_layer=1, **_PATCHES)
timm("twins_svt_small", 64, img_size=64, **_EMBEDDED)
timm("visformer_tiny", 64, img_size=64, init_channels=8, embed_dim=16, depth=(1, 1, 1), num_heads=2)
timm("davit_tiny", 64, **_EMBEDDED)
timm("FocalNet", 64, "focalnet", embed_dim=8, **_FOUR)
timm("mambaout_femto", 64, **_DIMS)
timm("swinv2_tiny_window8_256", 64, img_size=64, window_size=4, embed_dim=8, depths=(2, 1), num_heads=(1, 2))
timm("seresnet50", 64, layers=(1, 1, 1, 1), channels=(8, 16, 24, 32), stem_width=8)
timm("mobilevit_xxs", 64)


# transformers


class _Logits(torch.nn.Module):
    """A model with one tensor as its output."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(self, **arguments: torch.Tensor) -> torch.Tensor:
        return self.model(**arguments).logits


def language(name: str, config: str, *arguments: str, tolerance: float = 1e-9, **settings: Any) -> None:
    """Adds a model of transformers' with a small vocabulary."""

    def make() -> torch.nn.Module:
        torchvision_models()
        import transformers

        made = getattr(transformers, config)(**{"vocab_size": VOCABULARY, "use_cache": False, **settings})
        return _Logits(getattr(transformers, name)(made))

    MODELS[f"transformers.{name}"] = Model(make, tokens(*(arguments or ("input_ids",))), tolerance)


_WIDTHS: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
}
_SIDES: dict[str, Any] = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": 32,
}
_BOTH = ("input_ids", "decoder_input_ids")
language(
    "GPT2LMHeadModel", "GPT2Config", n_embd=16, n_layer=2, n_head=2, n_positions=32, bos_token_id=0, eos_token_id=0
)
language(
    "T5ForConditionalGeneration", "T5Config", *_BOTH, tolerance=IN_FLOAT32,
    d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, dropout_rate=0.0,
)  # fmt: skip
language("BertForMaskedLM", "BertConfig", **_WIDTHS)
language("MambaForCausalLM", "MambaConfig", tolerance=IN_FLOAT32, hidden_size=16, state_size=4, num_hidden_layers=2)
language("AlbertForMaskedLM", "AlbertConfig", embedding_size=8, **_WIDTHS)
language("ElectraForMaskedLM", "ElectraConfig", embedding_size=8, **_WIDTHS)
language("RobertaForMaskedLM", "RobertaConfig", **_WIDTHS)
language(
    "DistilBertForMaskedLM",
    "DistilBertConfig",
    dim=16,
    n_layers=2,
    n_heads=2,
    hidden_dim=32,
    max_position_embeddings=32,
)
language("BartForConditionalGeneration", "BartConfig", *_BOTH, dropout=0.0, **_SIDES)
language("OPTForCausalLM", "OPTConfig", word_embed_proj_dim=16, ffn_dim=32, dropout=0.0, **_WIDTHS)
language(
    "LlamaForCausalLM", "LlamaConfig", tolerance=IN_FLOAT32, tie_word_embeddings=True, num_key_value_heads=1, **_WIDTHS
)
language("GemmaForCausalLM", "GemmaConfig", tolerance=IN_FLOAT32, head_dim=8, num_key_value_heads=1, **_WIDTHS)
language(
    "Qwen2ForCausalLM", "Qwen2Config", tolerance=IN_FLOAT32, tie_word_embeddings=True, num_key_value_heads=1, **_WIDTHS
)
language("DebertaV2ForMaskedLM", "DebertaV2Config", relative_attention=True, pos_att_type=["p2c", "c2p"], **_WIDTHS)
