"""Models of today written in jax by hand, as someone would who has jax only: what XLA makes of them without this
package. Each is (parameters by torch's names, tokens) → scores; the parameters are torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch

from .modes import Mode, Program

Parameters = dict[str, jax.Array]
Forward = Callable[[Parameters, jax.Array], jax.Array]


def llama(model: Any) -> Forward:
    """A decoder with rotary embeddings, queries in groups and gated products."""
    config = model.model.config
    width = config.hidden_size // config.num_attention_heads
    frequencies = jnp.asarray(model.model.model.rotary_emb.inv_freq.numpy())

    def forward(parameters: Parameters, tokens: jax.Array) -> jax.Array:
        batch, length = tokens.shape
        angles = jnp.arange(length)[:, None] * frequencies
        angles = jnp.concatenate([angles, angles], -1)[None, :, None]
        cosine, sine = jnp.cos(angles), jnp.sin(angles)

        def product(x: jax.Array, name: str) -> jax.Array:
            return x @ parameters[f"{name}.weight"].T

        def normed(x: jax.Array, name: str) -> jax.Array:
            scale = jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + config.rms_norm_eps)
            return x * scale * parameters[f"{name}.weight"]

        def rotated(x: jax.Array) -> jax.Array:
            first, second = jnp.split(x, 2, -1)
            return x * cosine + jnp.concatenate([-second, first], -1) * sine

        x = parameters["model.model.embed_tokens.weight"][tokens]
        for number in range(config.num_hidden_layers):
            layer = f"model.model.layers.{number}"
            y = normed(x, f"{layer}.input_layernorm")
            query, key, value = (
                product(y, f"{layer}.self_attn.{each}_proj").reshape(batch, length, -1, width) for each in "qkv"
            )
            y = jax.nn.dot_product_attention(rotated(query), rotated(key), value, is_causal=True)
            x = x + product(y.reshape(batch, length, -1), f"{layer}.self_attn.o_proj")
            y = normed(x, f"{layer}.post_attention_layernorm")
            gate, up = (product(y, f"{layer}.mlp.{each}_proj") for each in ("gate", "up"))
            x = x + product(jax.nn.silu(gate) * up, f"{layer}.mlp.down_proj")
        return product(normed(x, "model.model.norm"), "model.lm_head")

    return forward


def lstm(model: Any) -> Forward:
    """Two layers, the input's products outside of the loop over time."""
    layers = model.lstm.num_layers

    def forward(parameters: Parameters, tokens: jax.Array) -> jax.Array:
        x = parameters["embedding.weight"][tokens].swapaxes(0, 1)
        for layer in range(layers):
            x = _recurrence(parameters, layer, x)
        return x.swapaxes(0, 1) @ parameters["head.weight"].T + parameters["head.bias"]

    return forward


def _recurrence(parameters: Parameters, layer: int, x: jax.Array) -> jax.Array:
    """(steps, batch, features) → (steps, batch, hidden)."""

    def of(name: str) -> jax.Array:
        return parameters[f"lstm.{name}_l{layer}"]

    inputs = x @ of("weight_ih").T + of("bias_ih") + of("bias_hh")
    recurrent = of("weight_hh").T

    def step(state: tuple[jax.Array, jax.Array], products: jax.Array) -> Any:
        hidden, cell = state
        entry, forget, candidate, out = jnp.split(products + hidden @ recurrent, 4, -1)
        cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(entry) * jnp.tanh(candidate)
        hidden = jax.nn.sigmoid(out) * jnp.tanh(cell)
        return (hidden, cell), hidden

    zeros = jnp.zeros((x.shape[1], recurrent.shape[0]), x.dtype)
    return jax.lax.scan(step, (zeros, zeros), inputs)[1]


def resnet50(model: Any) -> Forward:
    """Four stages of blocks of three convolutions, in evaluation; images and features hold their channels second."""
    statistics = {name: jnp.array(buffer.numpy()) for name, buffer in model.named_buffers() if "running" in name}

    def forward(parameters: Parameters, images: jax.Array) -> jax.Array:
        def convolved(x: jax.Array, name: str, stride: int = 1, padding: int = 0) -> jax.Array:
            filters = parameters[f"{name}.weight"]
            around = [(padding, padding)] * 2
            return jax.lax.conv_general_dilated(
                x, filters, (stride, stride), around, dimension_numbers=("NCHW", "OIHW", "NCHW")
            )

        def normed(x: jax.Array, name: str) -> jax.Array:
            scale = parameters[f"{name}.weight"] * jax.lax.rsqrt(statistics[f"{name}.running_var"] + 1e-5)
            shift = parameters[f"{name}.bias"] - statistics[f"{name}.running_mean"] * scale
            return x * scale[:, None, None] + shift[:, None, None]

        def block(x: jax.Array, name: str, stride: int) -> jax.Array:
            y = jax.nn.relu(normed(convolved(x, f"{name}.conv1"), f"{name}.bn1"))
            y = jax.nn.relu(normed(convolved(y, f"{name}.conv2", stride, 1), f"{name}.bn2"))
            y = normed(convolved(y, f"{name}.conv3"), f"{name}.bn3")
            if f"{name}.downsample.0.weight" in parameters:
                x = normed(convolved(x, f"{name}.downsample.0", stride), f"{name}.downsample.1")
            return jax.nn.relu(x + y)

        x = jax.nn.relu(normed(convolved(images, "conv1", 2, 3), "bn1"))
        around = ((0, 0), (0, 0), (1, 1), (1, 1))
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 3, 3), (1, 1, 2, 2), around)
        for stage, blocks in enumerate((3, 4, 6, 3), 1):
            for number in range(blocks):
                x = block(x, f"layer{stage}.{number}", 2 if stage > 1 and number == 0 else 1)
        return x.mean((2, 3)) @ parameters["fc.weight"].T + parameters["fc.bias"]

    return forward


#: The models that the mode `jax` has.
MODELS: dict[str, Callable[[Any], Forward]] = {"llama": llama, "lstm": lstm}


class JaxProgram(Program):
    """A model's counterpart in jax, with a copy of its parameters.

    Args:
        name: of the model, one of `MODELS`.
    """

    def __init__(self, name: str, mode: Mode, model: torch.nn.Module, inputs: Sequence[torch.Tensor]):
        self.mode, self.model, self.rest_s = mode, model, 0.0
        self.inputs = list(inputs)
        forward = MODELS[name](model)
        self._names = [each for each, _ in model.named_parameters()]
        self._parameters = {each: jnp.array(value.detach().numpy()) for each, value in model.named_parameters()}
        self._tokens = [jnp.array(each.numpy(), jnp.int32) for each in inputs]

        def loss(parameters: Parameters, *tokens: jax.Array) -> jax.Array:
            return jnp.square(forward(parameters, *tokens)).mean()

        self._run = jax.jit(jax.value_and_grad(loss) if model.training else forward)
        self._found: Any = None

    def start(self) -> None:
        self._found = self._run(self._parameters, *self._tokens)

    def wait(self) -> None:
        jax.block_until_ready(self._found)

    def clear(self) -> None:
        self._found = None

    def results(self) -> dict[str, torch.Tensor]:
        if not self.model.training:
            return {"output 0": torch.from_numpy(jax.device_get(self._found).copy())}
        gradients = self._found[1]
        return {each: torch.from_numpy(jax.device_get(gradients[each]).copy()) for each in self._names}
