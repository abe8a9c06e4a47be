# After PyTorch/XLA's examples/eager/train_decoder_only_eager_with_compile.py.
import os
import sys
example_folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.append(example_folder)
from train_decoder_only_base import TrainDecoderOnlyBase

import torch_xla


class TrainDecoderXLAEagerWithCompile(TrainDecoderOnlyBase):

  def __init__(self):
    super().__init__()
    # step fn will still be compiled
    self.compiled_step_fn = torch_xla.compile(self.step_fn, full_graph=True)


if __name__ == '__main__':
  # The step fn will still be compiled, random input generation happens eagerly.
  torch_xla.experimental.eager_mode(True)
  trainer = TrainDecoderXLAEagerWithCompile()
  trainer.start_training()
