"""A small Llama-like language model with fresh weights, after PyTorch/XLA's example (`examples/decoder_only_model.py`):
RMS norms, grouped queries, a gated MLP; no positions, no causal mask.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import nn


class Config(NamedTuple):
    """Sizes of the model."""

    hidden: int = 512
    layers: int = 2
    heads: int = 8
    key_value_heads: int = 4
    intermediate: int = 2048
    vocabulary: int = 3200


class RMSNorm(nn.Module):
    """Divides by the root mean square over the last dimension; computed in float32."""

    def __init__(self, size: int, eps: float = 1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dtype = x.dtype
        x = x.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * x.to(dtype)


class Attention(nn.Module):
    """Attention in which several query heads share one key and value head."""

    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.size = config.hidden // config.heads
        key_value = config.key_value_heads * self.size
        self.q_proj = nn.Linear(config.hidden, config.hidden, bias=False)
        self.k_proj = nn.Linear(config.hidden, key_value, bias=False)
        self.v_proj = nn.Linear(config.hidden, key_value, bias=False)
        self.o_proj = nn.Linear(config.hidden, config.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        config = self.config
        batch, length, _ = x.shape
        queries = self.q_proj(x).view(batch, length, config.heads, self.size).transpose(1, 2)
        keys = self.k_proj(x).view(batch, length, config.key_value_heads, self.size).transpose(1, 2)
        values = self.v_proj(x).view(batch, length, config.key_value_heads, self.size).transpose(1, 2)
        shared = config.heads // config.key_value_heads
        keys, values = _repeat(keys, shared), _repeat(values, shared)
        weights = torch.matmul(queries, keys.transpose(2, 3)) / math.sqrt(self.size)
        weights = nn.functional.softmax(weights, dim=-1, dtype=torch.float32).to(queries.dtype)
        found = torch.matmul(weights, values).transpose(1, 2).contiguous()
        return self.o_proj(found.reshape(batch, length, config.hidden))


def _repeat(x: torch.Tensor, count: int) -> torch.Tensor:
    """(batch, heads, length, size) → (batch, heads * count, length, size)."""
    batch, heads, length, size = x.shape
    return x[:, :, None].expand(batch, heads, count, length, size).reshape(batch, heads * count, length, size)


class MLP(nn.Module):
    """Two projections up, one of which gates the other, and one down."""

    def __init__(self, config: Config):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.up_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.down_proj = nn.Linear(config.intermediate, config.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention and MLP, each on what a norm gives, and added to what came in."""

    def __init__(self, config: Config):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden)
        self.mlp = MLP(config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class DecoderOnlyModel(nn.Module):
    """int64[batch, length] tokens → float32[batch, length, vocabulary] logits."""

    def __init__(self, config: Config):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocabulary, config.hidden)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.hidden)
        self.output = nn.Linear(config.hidden, config.vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))
