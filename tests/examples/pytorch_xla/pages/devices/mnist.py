"""What the blocks leave undefined: the model, made-up data of MNIST's sizes, and numbers."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

lr, momentum, num_epochs = 0.05, 0.5, 1
batches = 8

_generator = torch.Generator().manual_seed(0)
train_loader = DataLoader(
    TensorDataset(
        torch.randn(batches * 16, 1, 28, 28, generator=_generator),
        torch.randint(0, 10, (batches * 16,), generator=_generator),
    ),
    batch_size=16,
)


class MNIST(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10), nn.LogSoftmax(1))
