"""A classifier of handwritten digits, trained by several processes, each of them with one device.

    CPU_NUM_DEVICES=2 python -m lazy_runtime examples/mnist_processes.py

Each process sees its share of every batch; the gradients are averaged over all. It runs with PyTorch/XLA as it is.
"""

import torch
import torch_xla
import torch_xla.core.xla_model as xm
from digits import Classifier, counted, evaluate, loader, parser, report, test_data, training_data
from torch import nn


def train(index, flags):
    torch.manual_seed(1)
    model = Classifier().to(torch_xla.device())
    xm.broadcast_master_param(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=flags.lr, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    for epoch in range(1, flags.epochs + 1):
        model.train()
        with counted(epoch, flags):
            for step, (images, classes) in enumerate(loader(training_data(flags), flags)):
                optimizer.zero_grad()
                loss = loss_of(model(images), classes)
                loss.backward()
                xm.optimizer_step(optimizer)
                if step % flags.log_steps == 0:
                    xm.add_step_closure(report, args=(epoch, step, loss))
        evaluate(model, loader(test_data(flags), flags), epoch)


if __name__ == "__main__":
    torch_xla.launch(train, args=(parser(__doc__).parse_args(),))
