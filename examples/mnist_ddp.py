"""A classifier of handwritten digits, trained by several processes with torch's `DistributedDataParallel`.

    torchrun --nproc-per-node=2 -m lazy_runtime examples/mnist_ddp.py

Each process sees its share of every batch; the gradients are averaged over all of them. It runs with PyTorch/XLA as it
is.
"""

import torch
import torch.distributed as dist
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_backend
from digits import Classifier, counted, evaluate, loader, parser, report, test_data, training_data
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(index, flags):
    dist.init_process_group("xla", init_method="xla://")
    torch.manual_seed(1)
    model = DistributedDataParallel(Classifier().to(torch_xla.device()))
    optimizer = torch.optim.SGD(model.parameters(), lr=flags.lr, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    for epoch in range(1, flags.epochs + 1):
        model.train()
        with counted(epoch, flags):
            for step, (images, classes) in enumerate(loader(training_data(flags), flags)):
                optimizer.zero_grad()
                loss = loss_of(model(images), classes)
                loss.backward()
                optimizer.step()
                if step % flags.log_steps == 0:
                    xm.add_step_closure(report, args=(epoch, step, loss))
        evaluate(model, loader(test_data(flags), flags), epoch)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch_xla.launch(train, args=(parser(__doc__).parse_args(),))
