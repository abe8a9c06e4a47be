"""PyTorch/XLA's `test`: what its example scripts print with."""
