"""A language model that generates, as a loop outside of what is compiled: one call of the model for each token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .model import Model, Tensors, transformers

#: Tokens of the prompt, and calls after it.
PROMPT, TOKENS = 32, 16

VOCABULARY = 8_192


class Decoding(torch.nn.Module):
    """The most probable tokens after a prompt, by transformers' static cache."""

    def __init__(self) -> None:
        super().__init__()
        library = transformers()
        config = library.LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=256,
            intermediate_size=704,
            num_hidden_layers=4,
            num_attention_heads=8,
            num_key_value_heads=2,
            max_position_embeddings=PROMPT + TOKENS,
        )
        self.model = library.LlamaForCausalLM(config)
        self._step: Callable[..., Any] | None = None
        self._caches: dict[torch.device, Any] = {}

    def compile_parts(self, compile_: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Has a compiler make what each token calls; the loop around it stays Python."""
        self._step = compile_(self.model.forward)

    def forward(self, prompt: torch.Tensor) -> torch.Tensor:
        """(batch, length) tokens → (batch, calls, vocabulary) scores of the tokens that follow.

        Raises:
            ValueError: it is in train mode: generation has no gradient.
        """
        if self.training:
            raise ValueError("decoding generates text, which has no gradient: it has the test inference alone")
        batch, length = prompt.shape
        if prompt.device not in self._caches:  # a copy of the module may live elsewhere
            self._caches[prompt.device] = self._new_cache(batch, length + TOKENS, prompt.device)
        cache = self._caches[prompt.device]
        cache.reset()
        step = self._step or self.model
        tokens, scores, position = prompt, [], torch.arange(length, device=prompt.device)
        for _ in range(TOKENS + 1):
            found = step(tokens, past_key_values=cache, position_ids=position.expand(batch, -1), logits_to_keep=1)
            scores.append(found.logits)
            tokens, position = found.logits.argmax(-1), position[-1:] + 1
        return torch.cat(scores, dim=1)

    def _new_cache(self, batch: int, length: int, device: torch.device) -> Any:
        config = self.model.config
        cache = transformers().StaticCache(config=config, max_cache_len=length)
        # else its first call would make it, which is another program
        heads, width = config.num_key_value_heads, config.hidden_size // config.num_attention_heads
        cache.early_initialization(batch, heads, width, self.model.dtype, device)
        return cache


def _prompt(batch: int, size: int) -> Tensors:
    return (torch.randint(0, VOCABULARY, (batch, PROMPT)),)


DECODING: dict[str, Model] = {"decoding": Model(Decoding, _prompt, batch_size=1, smallest_image=None)}
