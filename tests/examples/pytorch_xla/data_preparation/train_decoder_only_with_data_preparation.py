# Data preparation on the device, kept apart from the compiled step: after the section "torch_xla.compile" of
# PyTorch/XLA's page on eager mode, with the model of its examples.
import os
import sys
example_folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.append(example_folder)
from train_decoder_only_base import TrainDecoderOnlyBase

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met


class TrainWithDataPreparation(TrainDecoderOnlyBase):

  def prepare(self, data, shift):
    # differs from step to step, and must not recompile the step
    data = torch.roll(data + shift, shift, dims=1) % self.config.vocab_size
    if shift % 2:
      data = data.flip(0)
    return data

  def train_loop_fn(self, loader, epoch):
    tracker = xm.RateTracker()
    self.model.train()
    for step, (data, target) in zip(range(self.num_steps), loader):
      data, target = self.prepare(data, step % 3), self.prepare(target, step % 3)
      loss = self.compiled_step_fn(data, target)
      if step == 2:
        met.clear_all()
      tracker.add(self.batch_size)
      if step % 10 == 0:
        xm.add_step_closure(
            self._train_update, args=(step, loss, tracker, epoch))
    print(f'compiles: {met.counter_value("UncachedCompile")}')


if __name__ == '__main__':
  trainer = TrainWithDataPreparation()
  trainer.start_training()
