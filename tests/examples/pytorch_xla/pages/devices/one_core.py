"""The same on one device alone."""

import torch_xla.core.xla_model as xm
import torch_xla.distributed.data_parallel as dp
from mnist import MNIST, batches, lr, momentum, train_loader
from torch import nn, optim

model_parallel = dp.DataParallel(MNIST, device_ids=[xm.xla_device()])


def train_loop_fn(model, loader, device, context):
    loss_fn = nn.NLLLoss()
    optimizer = optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    steps = 0
    for data, target in loader:
        optimizer.zero_grad()
        loss_fn(model(data), target).backward()
        xm.optimizer_step(optimizer)
        steps += 1
    return str(device), steps


assert model_parallel(train_loop_fn, train_loader) == [("xla:0", batches)]
print("ranks: 1")
