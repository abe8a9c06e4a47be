"""Running on several devices with multi-threading."""

import torch_xla.core.xla_model as xm
import torch_xla.distributed.data_parallel as dp
from mnist import MNIST, batches, lr, momentum, num_epochs, train_loader
from torch import nn, optim

devices = xm.get_xla_supported_devices()
model_parallel = dp.DataParallel(MNIST, device_ids=devices)


def train_loop_fn(model, loader, device, context):
    loss_fn = nn.NLLLoss()
    optimizer = context.getattr_or("optimizer", lambda: optim.SGD(model.parameters(), lr=lr, momentum=momentum))
    model.train()
    steps = 0
    for data, target in loader:
        assert data.device == device
        optimizer.zero_grad()
        output = model(data)
        loss = loss_fn(output, target)
        loss.backward()
        xm.optimizer_step(optimizer)
        steps += 1
    return steps


for _ in range(1, num_epochs + 1):
    counts = model_parallel(train_loop_fn, train_loader)
assert counts == [batches // len(devices)] * len(devices), counts
print("ranks:", len(counts))
