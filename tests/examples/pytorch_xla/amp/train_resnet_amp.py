# After PyTorch/XLA's examples/train_resnet_amp.py.
import os
import sys
example_folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.append(example_folder)
from train_resnet_base import TrainResNetBase

from torch_xla.amp import autocast, syncfree
import torch_xla


class TrainResNetXLAAMP(TrainResNetBase):

  def __init__(self):
    super().__init__()
    self.optimizer = syncfree.SGD(
        self.model.parameters(), lr=1e-3, weight_decay=1e-4)

  def step_fn(self, data, target):
    self.optimizer.zero_grad()
    with autocast(torch_xla.device()):
      output = self.model(data)
      loss = self.loss_fn(output, target)
    loss.backward()
    self.run_optimizer()
    return loss


if __name__ == '__main__':
  xla_amp = TrainResNetXLAAMP()
  xla_amp.start_training()
