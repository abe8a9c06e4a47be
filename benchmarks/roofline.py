"""What the machine could do at best: a model's floating-point operations at the speed of a large matrix product, or its
weights at the speed of the memory, whichever takes longer.
"""

from __future__ import annotations

import concurrent.futures
import copy
import multiprocessing
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from . import measure

SIZE = 1024  # rows and columns of the product that is timed
ROUNDS = 30

#: The size of the array that is read to measure the memory's bandwidth, larger than the caches.
READ_BYTES = 1 << 29

#: How often each byte of the parameters is moved at least: `training` writes gradients as well, and a step reads and
#: writes the parameters and their momentum. Activations come on top.
PASSES = {"inference": 1, "training": 2, "step": 4}


def flops(model: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> int:
    """Floating-point operations of the products and convolutions of one pass, backward included in train mode.

    The backward pass counts twice the forward one, a product each for the input's gradient and the weights': torch's
    counter overlooks groups there, which makes twenty times of mobilenet_v2's. Nothing is computed, unless the model
    reads values: transformers' language models choose their masks so.
    """
    try:
        counted = _counted(copy.deepcopy(model).to("meta"), [tensor.to("meta") for tensor in inputs])
    except RuntimeError:
        counted = _counted(copy.deepcopy(model), inputs)
    return counted * (3 if model.training else 1)


def _counted(model: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> int:
    # the counter knows attention's fused kernels of CUDA, but not the CPU's: their parts are counted
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        model(*inputs)
    return counter.get_total_flops()


def weight_bytes(model: torch.nn.Module) -> int:
    """Bytes of the weights that each run, or token, reads whole: all but the embeddings, of which it reads rows."""
    kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, kinds)}
    return sum(_bytes(each) for each in model.parameters() if id(each) not in embeddings)


def _bytes(tensor: torch.Tensor) -> int:
    flatten: Any = getattr(tensor, "__tensor_flatten__", None)
    if flatten is not None:  # a quantised weight, which consists of others
        names, _ = flatten()
        return sum(_bytes(getattr(tensor, name)) for name in names)
    return tensor.numel() * tensor.element_size()


def bandwidth() -> float:
    """Bytes that the machine's cores read in a second together, the fastest of some rounds."""
    read = torch.zeros(READ_BYTES // 4)
    return READ_BYTES / min(measure.seconds(read.sum) for _ in range(10))


def peak_gflops() -> float:
    """10^9 floating-point operations a second in the fastest float32 product of 1024x1024 matrices by jax, measured in
    a process of its own.
    """
    context = multiprocessing.get_context("spawn")  # fork does not go with the threads of torch and XLA
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_peak_gflops).result()


def _peak_gflops() -> float:
    import jax

    product = jax.jit(jax.numpy.matmul)
    matrix = jax.random.normal(jax.random.key(0), (SIZE, SIZE), "float32")
    product(matrix, matrix).block_until_ready()
    fastest = min(measure.seconds(lambda: product(matrix, matrix).block_until_ready()) for _ in range(ROUNDS))
    return 2 * SIZE**3 / fastest / 1e9


def milliseconds(
    test: str, flops: float, weights: float = 0, *, gflops: float, read_gbytes: float | None = None
) -> float:
    """The least time of a test of a model.

    Args:
        flops: floating-point operations of the test.
        weights: bytes of the weights.
        gflops, read_gbytes: the machine's 10^9 operations and bytes a second.
    """
    products = flops / gflops / 1e6
    return max(products, weights * PASSES[test] / read_gbytes / 1e6) if read_gbytes else products
