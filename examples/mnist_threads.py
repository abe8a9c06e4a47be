"""A classifier of handwritten digits, trained by the threads of one process, each of them with one of its devices.

    CPU_NUM_DEVICES=4 python -m lazy_runtime examples/mnist_threads.py

Each thread sees its share of every batch; the gradients are averaged over all. It runs with PyTorch/XLA as it is, with
the versions that had `DataParallel`.
"""

import torch
import torch_xla.core.xla_model as xm
import torch_xla.distributed.data_parallel as dp
from digits import Classifier, counted, parser, test_data, training_data
from torch import nn
from torch.utils.data import DataLoader


def main(flags):
    torch.manual_seed(1)
    devices = xm.get_xla_supported_devices()[: flags.devices]
    share = flags.batch_size // max(len(devices), 1)
    trained = DataLoader(training_data(flags), batch_size=share, drop_last=True)
    tested = DataLoader(test_data(flags), batch_size=share, drop_last=True)
    model = dp.DataParallel(Classifier, device_ids=devices)
    loss_of = nn.CrossEntropyLoss()

    def train(model, loader, device, context):
        optimizer = context.getattr_or(
            "optimizer", lambda: torch.optim.SGD(model.parameters(), lr=flags.lr, momentum=0.9)
        )
        losses = []
        model.train()
        for step, (images, classes) in enumerate(loader):
            optimizer.zero_grad()
            loss = loss_of(model(images), classes)
            loss.backward()
            xm.optimizer_step(optimizer)
            if step % flags.log_steps == 0:
                xm.add_step_closure(lambda loss: losses.append(loss.item()), args=(loss,))
        xm.mark_step()
        return losses

    def test(model, loader, device, context):
        right = count = 0
        model.eval()
        with torch.no_grad():
            for images, classes in loader:
                right += (model(images).argmax(1) == classes).sum().item()
                count += len(classes)
        return right / count

    for epoch in range(1, flags.epochs + 1):
        with counted(epoch, flags):  # the executions of all threads
            losses = model(train, trained)
        for number, parts in enumerate(zip(*losses, strict=True)):
            print(f"epoch {epoch} step {number * flags.log_steps} loss: {sum(parts) / len(parts):.6f}")
        parts = model(test, tested)
        print(f"epoch {epoch} accuracy: {sum(parts) / len(parts):.4f}", flush=True)


if __name__ == "__main__":
    flags = parser(__doc__)
    flags.add_argument("--devices", type=int, help="by default all that there are; 0 is the plain CPU")
    main(flags.parse_args())
