# After PyTorch/XLA's examples/eager/train_decoder_only_eager.py.
import os
import sys
example_folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.append(example_folder)
from train_decoder_only_base import TrainDecoderOnlyBase

import torch_xla


class TrainDecoderOnlyEager(TrainDecoderOnlyBase):

  def __init__(self):
    super().__init__()
    # eager mode runs the step op by op
    self.compiled_step_fn = self.step_fn


if __name__ == '__main__':
  # this will be default soon
  torch_xla.experimental.eager_mode(True)
  base = TrainDecoderOnlyEager()
  base.start_training()
