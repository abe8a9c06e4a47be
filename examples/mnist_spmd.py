"""A classifier of handwritten digits, trained by one process over all its devices (SPMD, data parallel).

    CPU_NUM_DEVICES=4 python -m lazy_runtime examples/mnist_spmd.py

Every batch is cut along its first dimension, a part for each device. The rest is as with one device: XLA finds where
gradients have to be summed. It runs with PyTorch/XLA as it is.
"""

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from digits import Classifier, counted, evaluate, loader, parser, report, test_data, training_data
from torch import nn


def train(flags):
    xr.use_spmd()
    count = xr.global_runtime_device_count()
    mesh = xs.Mesh(list(range(count)), (count,), ("data",))
    images_in_parts = xs.ShardingSpec(mesh, ("data", None, None, None))
    torch.manual_seed(1)
    model = Classifier().to(torch_xla.device())
    optimizer = torch.optim.SGD(model.parameters(), lr=flags.lr, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    for epoch in range(1, flags.epochs + 1):
        model.train()
        with counted(epoch, flags):
            batches = loader(training_data(flags), flags, input_sharding=images_in_parts)
            for step, (images, classes) in enumerate(batches):
                optimizer.zero_grad()
                loss = loss_of(model(images), classes)
                loss.backward()
                optimizer.step()
                if step % flags.log_steps == 0:
                    xm.add_step_closure(report, args=(epoch, step, loss))
        evaluate(model, loader(test_data(flags), flags, input_sharding=images_in_parts), epoch)


if __name__ == "__main__":
    train(parser(__doc__).parse_args())
