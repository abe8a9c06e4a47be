"""A classifier of handwritten digits, trained by several processes with torch's `fully_shard` (FSDP2).

    torchrun --nproc-per-node=2 -m lazy_runtime examples/mnist_fsdp.py

Each process sees its share of every batch, and keeps its shard of every parameter and of the optimizer's state.
"""

import torch
import torch.distributed as dist
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_backend
from digits import Classifier, counted, evaluate, loader, parser, report, test_data, training_data
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def train(index, flags):
    dist.init_process_group("xla", init_method="xla://")
    mesh = init_device_mesh("xla", (dist.get_world_size(),))
    torch.manual_seed(1)
    model = Classifier().to(torch_xla.device())
    for part in (model.features, model.head, model):  # parameters are gathered for one of them at a time
        fully_shard(part, mesh=mesh)
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
