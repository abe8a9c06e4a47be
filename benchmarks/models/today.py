"""Models of the kinds that people train and serve now, with fresh weights: nothing is downloaded.

They are small enough for two cores: a tenth of a second to a second for a run of eager's. The layers have the shapes of
the large ones: grouped queries, gated products, experts, windows, embeddings of many tables, steps of a recurrence.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch

from .model import Model, Output, Tensors, image, torchvision_models, transformers, vision

VOCABULARY = 8_192


def _tokens(length: int, vocabulary: int = VOCABULARY) -> Callable[[int, int], Tensors]:
    return lambda batch, size: (torch.randint(0, vocabulary, (batch, length)),)


def _decoder(kind: str, **sizes: int) -> Callable[[], torch.nn.Module]:
    """Makes a language model of transformers whose queries share keys and values in groups."""

    def build() -> torch.nn.Module:
        library = transformers()
        config = getattr(library, f"{kind}Config")(
            vocab_size=VOCABULARY, num_key_value_heads=2, max_position_embeddings=512, **sizes
        )
        return Output(getattr(library, f"{kind}ForCausalLM")(config), "logits", use_cache=False)

    return build


_LLAMA = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8, "num_attention_heads": 8}
_MIXTRAL = {
    "hidden_size": 384,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}


def _t5() -> torch.nn.Module:
    library = transformers()
    config = library.T5Config(
        vocab_size=VOCABULARY,
        d_model=512,
        d_kv=64,
        d_ff=1024,
        num_layers=6,
        num_heads=8,
        dropout_rate=0.0,
        feed_forward_proj="gated-gelu",
    )
    return Output(library.T5EncoderModel(config), "last_hidden_state")


#: Frames of sound that the encoder of Whisper takes here, half of them after its second convolution.
FRAMES = 1_000


def _whisper() -> torch.nn.Module:
    library = transformers()
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = library.WhisperConfig(
        d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536, max_source_positions=FRAMES // 2
    )
    return Output(WhisperEncoder(config), "last_hidden_state")


def _sound(batch: int, size: int) -> Tensors:
    return (torch.randn(batch, 80, FRAMES),)


def _unet() -> torch.nn.Module:
    torchvision_models()
    from diffusers.models.unets.unet_2d import UNet2DModel

    model = UNet2DModel(
        sample_size=32,
        block_out_channels=(64, 128, 128),
        layers_per_block=2,
        down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=16,
    )
    return Output(model, "sample")


def _noise(batch: int, size: int) -> Tensors:
    return torch.randn(batch, 3, 32, 32), torch.randint(0, 1000, (batch,))


class Recommender(torch.nn.Module):
    """Tables of embeddings whose products with each other, beside numbers, give a score: the structure of DLRM.

    Source: Naumov et al., Deep Learning Recommendation Model for Personalization and Recommendation Systems, 2019.
    """

    TABLES, ROWS, WIDTH, NUMBERS = 26, 20_000, 64, 13

    def __init__(self) -> None:
        super().__init__()
        self.tables = torch.nn.ModuleList(
            torch.nn.EmbeddingBag(self.ROWS, self.WIDTH, mode="sum") for _ in range(self.TABLES)
        )
        self.bottom = _perceptron(self.NUMBERS, 512, 256, self.WIDTH)
        pairs = (self.TABLES + 1) * self.TABLES // 2
        self.top = _perceptron(self.WIDTH + pairs, 512, 256, 1)
        self.pairs: torch.Tensor
        self.register_buffer("pairs", torch.tril_indices(self.TABLES + 1, self.TABLES + 1, -1), persistent=False)

    def forward(self, numbers: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """(batch, 13) numbers and (batch, 26, indices of a bag) → (batch, 1) scores."""
        dense = self.bottom(numbers)
        vectors = torch.stack([dense, *(table(indices[:, i]) for i, table in enumerate(self.tables))], dim=1)
        products = vectors @ vectors.mT
        return self.top(torch.cat([dense, products[:, self.pairs[0], self.pairs[1]]], dim=1))


def _perceptron(*widths: int) -> torch.nn.Sequential:
    layers: list[torch.nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [torch.nn.Linear(before, after), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def _clicks(batch: int, size: int) -> Tensors:
    numbers = torch.rand(batch, Recommender.NUMBERS)
    return numbers, torch.randint(0, Recommender.ROWS, (batch, Recommender.TABLES, 4))


class LanguageLSTM(torch.nn.Module):
    """A language model of two LSTM layers."""

    def __init__(self, width: int = 512):
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, width)
        self.lstm = torch.nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = torch.nn.Linear(width, 1_024)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(batch, length) tokens → (batch, length, 1024) scores."""
        return self.head(self.lstm(self.embedding(tokens))[0])


TODAY: dict[str, Model] = {
    "llama": Model(_decoder("Llama", **_LLAMA), _tokens(256), batch_size=2, smallest_image=None),
    "mixtral": Model(_decoder("Mixtral", **_MIXTRAL), _tokens(128), batch_size=2, smallest_image=None),
    "t5_encoder": Model(_t5, _tokens(128), batch_size=4, smallest_image=None),
    "whisper_encoder": Model(_whisper, _sound, batch_size=1, smallest_image=None),
    "convnext_tiny": Model(vision("convnext_tiny"), image, batch_size=2),
    "swin_t": Model(vision("swin_t"), image, batch_size=2),
    "efficientnet_b0": Model(vision("efficientnet_b0"), image, has_batch_norm=True),
    "unet": Model(_unet, _noise, batch_size=2, smallest_image=None),
    "recommender": Model(Recommender, _clicks, batch_size=256, smallest_image=None),
    "lstm": Model(LanguageLSTM, _tokens(64), batch_size=8, smallest_image=None),
}
