"""What the machine could do at best: a model's floating-point operations at the speed of a large matrix product."""

from __future__ import annotations

import concurrent.futures
import copy
import multiprocessing
from collections.abc import Sequence

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

SIZE = 1024  # rows and columns of the product that is timed
ROUNDS = 30


def flops(model: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> int:
    """Floating-point operations of the products and convolutions of one pass, backward included in train mode.

    The backward pass counts twice the forward one, a product each for the input's gradient and the weights': torch's
    counter overlooks groups there, which makes twenty times of mobilenet_v2's. Nothing is computed.
    """
    shadow = copy.deepcopy(model).to("meta")
    # the counter knows attention's fused kernels of CUDA, but not the CPU's: their parts are counted
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        shadow(*(tensor.to("meta") for tensor in inputs))
    return counter.get_total_flops() * (3 if model.training else 1)


def peak_gflops() -> float:
    """10^9 floating-point operations a second in the fastest float32 product of 1024x1024 matrices by jax, measured in
    a process of its own.
    """
    context = multiprocessing.get_context("spawn")  # fork does not go with the threads of torch and XLA
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_peak_gflops).result()


def _peak_gflops() -> float:
    import jax

    from . import measure

    product = jax.jit(jax.numpy.matmul)
    matrix = jax.random.normal(jax.random.key(0), (SIZE, SIZE), "float32")
    product(matrix, matrix).block_until_ready()
    fastest = min(measure.seconds(lambda: product(matrix, matrix).block_until_ready()) for _ in range(ROUNDS))
    return 2 * SIZE**3 / fastest / 1e9
