"""Running on several devices with multi-processing."""

import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.xla_multiprocessing as xmp
from mnist import MNIST, batches, lr, momentum, num_epochs, train_loader
from torch import nn, optim


def _mp_fn(index):
    device = xm.xla_device()
    model = MNIST().train().to(device)
    loss_fn = nn.NLLLoss()
    optimizer = optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    steps = 0
    for _ in range(num_epochs):
        para_loader = pl.ParallelLoader(train_loader, [device])
        for data, target in para_loader.per_device_loader(device):
            optimizer.zero_grad()
            output = model(data)
            loss = loss_fn(output, target)
            loss.backward()
            xm.optimizer_step(optimizer)
            steps += 1
    assert steps == batches * num_epochs
    xm.master_print("ranks:", xm.xrt_world_size(), "loss:", loss.item())


if __name__ == "__main__":
    xmp.spawn(_mp_fn, args=())
