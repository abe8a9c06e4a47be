# After PyTorch/XLA's examples/debug/train_resnet_profile.py.
import os
import sys
example_folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.append(example_folder)
from train_resnet_base import TrainResNetBase

import itertools
import tempfile

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.profiler as xp
# torch_xla.debug.metrics as met
import torch_xla.debug.metrics as met


class TrainResNetProfile(TrainResNetBase):

  def step_fn(self, data, target):
    with xp.Trace('model_forward'):
      self.optimizer.zero_grad()
      output = self.model(data)
      loss = self.loss_fn(output, target)
    with xp.Trace('model_backward'):
      loss.backward()
    with xp.Trace('optimizer'):
      self.run_optimizer()
    return loss

  def train_loop_fn(self, loader, epoch):
    tracker = xm.RateTracker()
    self.model.train()
    loader = itertools.islice(loader, self.num_steps)
    for step, (data, target) in enumerate(loader):
      with xp.StepTrace('train_step', step_num=step):
        loss = self.compiled_step_fn(data, target)
      tracker.add(self.batch_size)
      if step % 10 == 0:
        xm.add_step_closure(
            self._train_update, args=(step, loss, tracker, epoch))


if __name__ == '__main__':
  with tempfile.TemporaryDirectory() as folder:
    xp.start_trace(folder)
    TrainResNetProfile().start_training()
    xp.stop_trace()
    print('trace files:', sum(len(files) for _, _, files in os.walk(folder)))
  print(met.metrics_report())
