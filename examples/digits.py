"""What the trainers beside it share: a classifier of handwritten digits, its data, and what is printed of its training.

The digits are made up (MNIST's sizes, a pattern per class under noise), so that nothing has to be downloaded.
"""

import argparse
import contextlib

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
import torch_xla.distributed.parallel_loader as pl
import torch_xla.runtime as xr
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(10, 20, 5), nn.MaxPool2d(2), nn.ReLU()
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(320, 50), nn.ReLU(), nn.Linear(50, 10))

    def forward(self, images):
        return self.head(self.features(images))


def parser(description):
    """The flags of every trainer."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--epochs", type=int, default=2)
    made.add_argument("--samples", type=int, default=4096)
    made.add_argument("--batch-size", type=int, default=128, help="of all devices together")
    made.add_argument("--lr", type=float, default=0.1)
    made.add_argument("--log-steps", type=int, default=8)
    made.add_argument("--metrics", action="store_true", help="print what training executes and compiles")
    return made


# ---- data


def training_data(flags):
    return _digits(flags.samples, seed=1)


def test_data(flags):
    return _digits(flags.samples // 4, seed=2)


def _digits(count, seed):
    """So many images (1, 28, 28) with their classes; the same in every process."""
    patterns = torch.rand(10, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    classes = torch.randint(0, 10, (count,), generator=generator)
    return TensorDataset(patterns[classes] + 0.3 * torch.randn(count, 1, 28, 28, generator=generator), classes)


def loader(data, flags, **options):
    """This process's share of every batch, on its device.

    Args:
        options: of `MpDeviceLoader`.
    """
    size, rank = xr.world_size(), xr.global_ordinal()
    sampler = DistributedSampler(data, num_replicas=size, rank=rank, shuffle=False)
    batches = DataLoader(data, batch_size=flags.batch_size // size, sampler=sampler, drop_last=True)
    return pl.MpDeviceLoader(batches, torch_xla.device(), **options)


# ---- what is printed


def report(epoch, step, loss):
    """The mean of all processes' losses: a closure for the end of a step, when the loss is there to be read."""
    whole = xm.mesh_reduce("loss", loss.item(), _mean)
    xm.master_print(f"epoch {epoch} step {step} loss: {whole:.6f}", flush=True)


def evaluate(model, batches, epoch):
    """The share of the images, of all processes, that the model knows."""
    model.eval()
    right = count = 0
    with torch.no_grad():
        for images, classes in batches:
            right += (model(images).argmax(1) == classes).sum().item()
            count += len(classes)
    accuracy = xm.mesh_reduce("accuracy", right / count, _mean)
    xm.master_print(f"epoch {epoch} accuracy: {accuracy:.4f}", flush=True)


def _mean(parts):
    return sum(parts) / len(parts)


@contextlib.contextmanager
def counted(epoch, flags):
    """With `--metrics`, prints what each process executes and compiles within the block, which trains an epoch. The
    counters are lazy_runtime's; PyTorch/XLA counts executions as the samples of its metric `ExecuteTime`.
    """
    xm.mark_step()  # what is pending belongs to no step
    before = _counters()
    yield
    if flags.metrics:
        ranks = xm.mesh_reduce("counters", [now - then for now, then in zip(_counters(), before, strict=True)], list)
        executions, compiles = zip(*ranks, strict=True)
        steps = flags.samples // flags.batch_size
        xm.master_print(f"epoch {epoch} steps: {steps} executions: {executions} compiles: {compiles}", flush=True)


def _counters():
    return [met.counter_value(name) or 0 for name in ("ExecuteComputation", "UncachedCompile")]
