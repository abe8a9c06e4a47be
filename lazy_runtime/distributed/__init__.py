"""PyTorch/XLA's `distributed`: loading data to a device."""
