"""Training on four devices in parts learns what one device does, one execution per step."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import lazy_runtime
from benchmarks.measurements.decoder_only import Config, DecoderOnlyModel
from lazy_runtime.common import metrics
from lazy_runtime.compilation import compiler
from lazy_runtime.torch_xla.distributed import spmd as xs
from lazy_runtime.torch_xla.distributed.parallel_loader import MpDeviceLoader
from lazy_runtime.torch_xla.experimental.spmd_fully_sharded_data_parallel import SpmdFullyShardedDataParallel

STEPS = 4
MODES = ("lazy", "openxla", "whole step")
SMALL = Config(hidden=32, layers=2, heads=4, key_value_heads=2, intermediate=64, vocabulary=48)


def train(
    model: nn.Module,
    batches: Any,
    loss_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    mode: str,
    new_optimizer: Callable[..., torch.optim.Optimizer],
) -> list[float]:
    """The losses; checks that after two steps nothing is compiled any more, and that a step is one execution."""
    optimizer = new_optimizer(model.parameters())
    forward = torch.compile(model, backend="openxla") if mode == "openxla" else model

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(forward(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    whole = torch.compile(step, backend="openxla") if mode == "whole step" else step
    losses, counted = [], []
    for inputs, targets in batches:
        losses.append(whole(inputs, targets))
        lazy_runtime.sync()
        counted.append((metrics.value("ExecuteComputation"), metrics.value("UncachedCompile")))
    executions, compiles = zip(*counted, strict=True)
    assert executions[-1] - executions[1] == len(counted) - 2
    assert compiles[-1] == compiles[2]
    return [loss.item() for loss in losses]


@functools.cache
def one_device(function: Callable[..., list[float]], *arguments: str) -> list[float]:
    """What the function gives here."""
    return function(*arguments)


def collectives() -> Counter[str]:
    """The collectives of the largest program, without those of its checks."""
    largest = max(compiler._executables.values(), key=lambda found: sum(call.operators for call in found.graph.calls))
    found: Counter[str] = Counter()
    for line in largest.compiled.as_text().splitlines():
        match = re.search(r"= (.*?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)\(", line)
        if match is not None and re.search(r"f32\[|bf16\[", match[1]):
            found[match[2]] += 1
    return found


# ---- a decoder, data parallel and tensor parallel


def tokens() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(7)
    starts = [torch.randint(0, SMALL.vocabulary, (8, 1), generator=generator) for _ in range(STEPS)]
    batches = [(start + torch.arange(13)) % SMALL.vocabulary for start in starts]
    return [(batch[:, :-1], batch[:, 1:]) for batch in batches]


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def decoder(mode: str, mesh: xs.Mesh | None = None) -> list[float]:
    torch.manual_seed(0)
    model = DecoderOnlyModel(SMALL).to("xla")
    sharding = None
    if mesh is not None:
        sharding = xs.ShardingSpec(mesh, ("data", None))
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2 and "embed" not in name:
                rows = re.search(r"[qkv]_proj|gate_proj|up_proj|output", name)
                xs.mark_sharding(parameter, mesh, ("model", None) if rows else (None, "model"))
    loader = MpDeviceLoader(tokens(), "xla", input_sharding=sharding)
    return train(model, loader, cross_entropy, mode, lambda parameters: torch.optim.AdamW(parameters, lr=0.003))


def sharded_decoder(mode: str) -> list[float]:
    compiler.clear()
    losses = decoder(mode, xs.Mesh(range(4), (2, 2), ("data", "model")))
    found = collectives()
    assert set(found) == {"all-reduce", "all-gather"}
    assert found["all-reduce"] <= 14  # for 21 parameters and two layers
    assert found["all-gather"] <= 8  # of the heads, which share keys and values in pairs
    return losses


@pytest.mark.parametrize("mode", MODES)
def test_a_decoder_in_parts_of_data_and_of_tensors(spmd, mode):
    expected = one_device(decoder, "lazy")
    assert expected[-1] < expected[0]
    torch.testing.assert_close(spmd(sharded_decoder, mode), expected, rtol=0, atol=1e-5)


# ---- images, data parallel


class Net(nn.Module):
    """PyTorch/XLA's MNIST model."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, kernel_size=5)
        self.bn1 = nn.BatchNorm2d(10)
        self.conv2 = nn.Conv2d(10, 20, kernel_size=5)
        self.bn2 = nn.BatchNorm2d(20)
        self.fc1 = nn.Linear(320, 50)
        self.fc2 = nn.Linear(50, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.bn1(torch.relu(torch.max_pool2d(self.conv1(x), 2)))
        x = self.bn2(torch.relu(torch.max_pool2d(self.conv2(x), 2)))
        x = nn.functional.dropout(torch.relu(self.fc1(torch.flatten(x, 1))), 0.5, self.training)
        return torch.log_softmax(self.fc2(x), dim=1)


def images() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    return [
        (torch.randn(16, 1, 28, 28, generator=generator), torch.randint(0, 10, (16,), generator=generator))
        for _ in range(STEPS)
    ]


def mnist(kind: str, mode: str) -> list[float]:
    torch.manual_seed(0)
    model: nn.Module = Net()
    sharding = None
    if kind != "one device":
        mesh = xs.get_1d_mesh("fsdp")
        sharding = xs.ShardingSpec(mesh, ("fsdp", None, None, None), minibatch=True)
        if kind == "fsdp":
            model = SpmdFullyShardedDataParallel(model, mesh=mesh)
    model = model.to("xla")
    loader = MpDeviceLoader(images(), "xla", input_sharding=sharding)
    torch.manual_seed(1)  # of dropout
    return train(
        model,
        loader,
        nn.functional.nll_loss,
        mode,
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.5),
    )


def sharded_mnist(kind: str, mode: str) -> list[float]:
    compiler.clear()
    losses = mnist(kind, mode)
    found = collectives()
    if kind == "data parallel":  # the gradients in three: each batch norm's statistics come in between
        assert set(found) == {"all-reduce"}
        assert found["all-reduce"] == 4 + 1 + 3  # batch norms, the loss, gradients
    else:
        assert found["all-gather"]
    return losses


@pytest.mark.parametrize("mode", MODES[:2])
@pytest.mark.parametrize("kind", ["data parallel", "fsdp"])
def test_images_in_parts(spmd, kind, mode):
    expected = one_device(mnist, "one device", "lazy")
    torch.testing.assert_close(spmd(sharded_mnist, kind, mode), expected, rtol=0, atol=1e-5)
