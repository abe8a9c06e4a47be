"""A Llama of transformers, trained by jax and optax over all devices of a process: parameters and batches in shards.

    CPU_NUM_DEVICES=4 python examples/llama_optax.py --steps 20

The model is torch's, the training jax's: `lazy_runtime.jax.function` makes a pure function of the module, and the rest
is what one writes for any model of jax. The task is to continue sequences that count upwards.
"""

import argparse
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from transformers import LlamaConfig, LlamaForCausalLM

import lazy_runtime.jax

VOCABULARY = 256


def model_of():
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, num_key_value_heads=2, use_cache=False, **sizes))


def batch_of(step, size=8, length=32):
    """(size, length) token numbers."""
    starts = np.random.default_rng(step).integers(0, VOCABULARY, (size, 1))
    return (starts + np.arange(length)) % VOCABULARY


def sharding_of(mesh, array):
    """A parameter's longest dimension in parts, where all devices get the same."""
    dim = int(np.argmax(array.shape))
    parts = [None] * array.ndim
    if array.shape[dim] % mesh.size == 0:
        parts[dim] = "data"
    return NamedSharding(mesh, PartitionSpec(*parts))


def train(steps, learning_rate):
    """Gives the loss of each step."""
    params, f = lazy_runtime.jax.function(model_of())
    mesh = Mesh(np.array(jax.devices()), ("data",))  # jax finds the shards of all else
    params = jax.device_put(params, jax.tree.map(functools.partial(sharding_of, mesh), params))
    optimizer = optax.adamw(learning_rate, weight_decay=0.01)
    state = jax.jit(optimizer.init)(params)
    print(f"{len(params)} parameters on {mesh.size} devices")

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, tokens):
        loss, gradients = jax.value_and_grad(lambda params: f(params, input_ids=tokens, labels=tokens)["loss"])(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    losses = []
    for number in range(steps):
        tokens = jax.device_put(jnp.asarray(batch_of(number), jnp.int32), NamedSharding(mesh, PartitionSpec("data")))
        params, state, loss = step(params, state, tokens)
        losses.append(loss)  # not read yet: the next step is on its way
    return [float(loss) for loss in losses]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    flags = parser.parse_args()
    lazy_runtime.device()  # CPU_NUM_DEVICES counts from here on
    for number, loss in enumerate(train(flags.steps, flags.learning_rate)):
        print(f"step {number} loss: {loss:.5f}")
