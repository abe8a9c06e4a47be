"""A classifier of handwritten digits, trained by several processes, each of them with one device.

    CPU_NUM_DEVICES=2 python -m lazy_runtime examples/mnist_processes.py

The digits are made up (MNIST's sizes, a pattern per class under noise), so that nothing has to be downloaded. Each
process sees its share of every batch; the gradients are averaged over all. It runs with PyTorch/XLA as it is.
"""

import argparse

import torch
import torch_xla
import torch_xla.core.xla_model as xm
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


def digits(count, seed):
    """So many images (1, 28, 28) with their classes; the same in every process."""
    patterns = torch.rand(10, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    classes = torch.randint(0, 10, (count,), generator=generator)
    return TensorDataset(patterns[classes] + 0.3 * torch.randn(count, 1, 28, 28, generator=generator), classes)


def loader(data, batch_size, shuffle):
    """This process's share of the data, on the device."""
    size, rank = xr.world_size(), xr.global_ordinal()
    sampler = DistributedSampler(data, num_replicas=size, rank=rank, shuffle=shuffle)
    batches = DataLoader(data, batch_size=batch_size // size, sampler=sampler, drop_last=True)
    return pl.MpDeviceLoader(batches, torch_xla.device())


def train(index, flags):
    torch.manual_seed(1)
    model = Classifier().to(torch_xla.device())
    xm.broadcast_master_param(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=flags.lr, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()

    def report(epoch, step, loss):
        whole = xm.mesh_reduce("loss", loss.item(), lambda losses: sum(losses) / len(losses))
        xm.master_print(f"epoch {epoch} step {step} loss: {whole:.6f}", flush=True)

    for epoch in range(1, flags.epochs + 1):
        model.train()
        for step, (images, classes) in enumerate(loader(digits(flags.samples, 1), flags.batch_size, shuffle=False)):
            optimizer.zero_grad()
            loss = loss_of(model(images), classes)
            loss.backward()
            xm.optimizer_step(optimizer)
            if step % flags.log_steps == 0:
                xm.add_step_closure(report, args=(epoch, step, loss))
        model.eval()
        right = count = 0
        with torch.no_grad():
            for images, classes in loader(digits(flags.samples // 4, 2), flags.batch_size, shuffle=False):
                right += (model(images).argmax(1) == classes).sum().item()
                count += len(classes)
        accuracy = xm.mesh_reduce("accuracy", right / count, lambda parts: sum(parts) / len(parts))
        xm.master_print(f"epoch {epoch} accuracy: {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--batch-size", type=int, default=128, help="of all processes together")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--log-steps", type=int, default=8)
    torch_xla.launch(train, args=(parser.parse_args(),))
