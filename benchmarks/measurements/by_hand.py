"""Training steps written in jax by hand, as someone would who has jax only: what our programs are measured against.

Each is (state, batch) → (state, loss); the state is donated. Images are (batch, height, width, channels), as XLA has
them fastest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .decoder_only import Config

Tree = Any


class Step(NamedTuple):
    """A training step and the shapes that it works on.

    Attributes:
        run: (state, batch) → (state, loss).
        state, batch: trees of `jax.ShapeDtypeStruct`.
    """

    run: Callable[[Tree, Tree], tuple[Tree, Any]]
    state: Tree
    batch: Tree

    def compile(self) -> jax.stages.Compiled:
        """The executable, for the default device, with the state donated."""
        return jax.jit(self.run, donate_argnums=0).lower(self.state, self.batch).compile()


def _shapes(tree: Tree) -> Tree:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


# ---- decoder-only model, AdamW


def decoder_only(batch: int, length: int, config: Config | None = None) -> Step:
    """Cross entropy of the next token, AdamW."""
    found = config or Config()

    def make(key: Any) -> Tree:
        parameters = _decoder_parameters(found, key)
        zeros = jax.tree.map(jnp.zeros_like, parameters)
        return {"parameters": parameters, "first": zeros, "second": zeros, "count": jnp.zeros((), jnp.int32)}

    def loss(parameters: Tree, tokens: Any, targets: Any) -> Any:
        logits = _decode(parameters, tokens, found)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1)
        return -chosen.mean()

    def run(state: Tree, data: Tree) -> tuple[Tree, Any]:
        value, gradients = jax.value_and_grad(loss)(state["parameters"], data["tokens"], data["targets"])
        return _adamw(state, gradients), value

    tokens = jax.ShapeDtypeStruct((batch, length), jnp.int32)
    return Step(run, jax.eval_shape(make, jax.random.key(0)), {"tokens": tokens, "targets": tokens})


def _adamw(state: Tree, gradients: Tree, rate: float = 1e-3, decay: float = 0.01) -> Tree:
    count = state["count"] + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["first"], gradients)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, state["second"], gradients)
    scale = rate * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)

    def update(p: Any, m: Any, v: Any) -> Any:
        return p * (1 - rate * decay) - scale * m / (jnp.sqrt(v) + 1e-8)

    parameters = jax.tree.map(update, state["parameters"], first, second)
    return {"parameters": parameters, "first": first, "second": second, "count": count}


def _decoder_parameters(config: Config, key: Any) -> Tree:
    size = config.hidden // config.heads

    def matrix(inputs: int, outputs: int) -> Any:
        return jax.random.normal(key, (inputs, outputs)) * inputs**-0.5

    def layer() -> Tree:
        return {
            "norm": jnp.ones(config.hidden),
            "q": matrix(config.hidden, config.hidden),
            "k": matrix(config.hidden, config.key_value_heads * size),
            "v": matrix(config.hidden, config.key_value_heads * size),
            "o": matrix(config.hidden, config.hidden),
            "norm2": jnp.ones(config.hidden),
            "gate": matrix(config.hidden, config.intermediate),
            "up": matrix(config.hidden, config.intermediate),
            "down": matrix(config.intermediate, config.hidden),
        }

    return {
        "embedding": matrix(config.vocabulary, config.hidden),
        "layers": [layer() for _ in range(config.layers)],
        "norm": jnp.ones(config.hidden),
        "output": matrix(config.hidden, config.vocabulary),
    }


def _rms_norm(x: Any, weight: Any) -> Any:
    return weight * x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def _decode(parameters: Tree, tokens: Any, config: Config) -> Any:
    x = parameters["embedding"][tokens]
    for layer in parameters["layers"]:
        y = _rms_norm(x, layer["norm"])
        queries, keys, values = (_heads(y @ layer[name], config) for name in "qkv")
        shared = config.heads // config.key_value_heads
        keys, values = jnp.repeat(keys, shared, 2), jnp.repeat(values, shared, 2)
        weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", queries, keys) / queries.shape[-1] ** 0.5)
        x = x + jnp.einsum("bhqk,bkhd->bqhd", weights, values).reshape(x.shape) @ layer["o"]
        y = _rms_norm(x, layer["norm2"])
        x = x + (jax.nn.silu(y @ layer["gate"]) * (y @ layer["up"])) @ layer["down"]
    return _rms_norm(x, parameters["norm"]) @ parameters["output"]


def _heads(x: Any, config: Config) -> Any:
    return x.reshape(*x.shape[:2], -1, config.hidden // config.heads)


# ---- resnet50, SGD with momentum


def resnet50(batch: int, image: int) -> Step:
    """Cross entropy over 1,000 classes, SGD with momentum; batch norms in training mode."""

    def make(key: Any) -> Tree:
        parameters, statistics = _resnet_parameters(key)
        return {
            "parameters": parameters,
            "momentum": jax.tree.map(jnp.zeros_like, parameters),
            "statistics": statistics,
        }

    def loss(parameters: Tree, statistics: Tree, images: Any, labels: Any) -> tuple[Any, Tree]:
        logits, statistics = _resnet(parameters, statistics, images)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean(), statistics

    def run(state: Tree, data: Tree) -> tuple[Tree, Any]:
        (value, statistics), gradients = jax.value_and_grad(loss, has_aux=True)(
            state["parameters"], state["statistics"], data["images"], data["labels"]
        )
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], gradients)
        parameters = jax.tree.map(lambda p, m: p - 0.01 * m, state["parameters"], momentum)
        return {"parameters": parameters, "momentum": momentum, "statistics": statistics}, value

    images = jax.ShapeDtypeStruct((batch, image, image, 3), jnp.float32)
    labels = jax.ShapeDtypeStruct((batch,), jnp.int32)
    return Step(run, jax.eval_shape(make, jax.random.key(0)), {"images": images, "labels": labels})


#: blocks and inner channels of the four stages
_STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))


def _resnet_parameters(key: Any) -> tuple[Tree, Tree]:
    parameters: dict[str, Any] = {}
    statistics: dict[str, Any] = {}

    def unit(name: str, size: int, inputs: int, outputs: int) -> None:
        kernel = jax.random.normal(key, (size, size, inputs, outputs)) * (size * size * inputs) ** -0.5
        parameters[name] = {"kernel": kernel, "scale": jnp.ones(outputs), "shift": jnp.zeros(outputs)}
        statistics[name] = {"mean": jnp.zeros(outputs), "variance": jnp.ones(outputs)}

    unit("stem", 7, 3, 64)
    inputs = 64
    for stage, (blocks, inner) in enumerate(_STAGES):
        for block in range(blocks):
            name = f"{stage}.{block}"
            unit(f"{name}.1", 1, inputs, inner)
            unit(f"{name}.2", 3, inner, inner)
            unit(f"{name}.3", 1, inner, 4 * inner)
            if block == 0:
                unit(f"{name}.short", 1, inputs, 4 * inner)
            inputs = 4 * inner
    parameters["last"] = {"weight": jnp.zeros((inputs, 1000)), "bias": jnp.zeros(1000)}
    return parameters, statistics


def _resnet(parameters: Tree, statistics: Tree, x: Any) -> tuple[Any, Tree]:
    updated: dict[str, Any] = {}

    def unit(name: str, x: Any, stride: int = 1) -> Any:
        p, s = parameters[name], statistics[name]
        edge = p["kernel"].shape[0] // 2
        x = jax.lax.conv_general_dilated(
            x, p["kernel"], (stride, stride), [(edge, edge)] * 2, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
        updated[name] = {
            "mean": 0.9 * s["mean"] + 0.1 * mean,
            "variance": 0.9 * s["variance"] + 0.1 * variance,
        }
        return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * p["scale"] + p["shift"]

    x = jax.nn.relu(unit("stem", x, 2))
    window = ((0, 0), (1, 1), (1, 1), (0, 0))
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), window)
    for stage, (blocks, _) in enumerate(_STAGES):
        for block in range(blocks):
            name, stride = f"{stage}.{block}", 2 if stage and not block else 1
            y = jax.nn.relu(unit(f"{name}.1", x))
            y = jax.nn.relu(unit(f"{name}.2", y, stride))
            y = unit(f"{name}.3", y)
            x = jax.nn.relu(y + (x if block else unit(f"{name}.short", x, stride)))
    x = x.mean((1, 2))
    return x @ parameters["last"]["weight"] + parameters["last"]["bias"], updated
