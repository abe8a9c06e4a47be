"""PyTorch/XLA's `utils`."""
