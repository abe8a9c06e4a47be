"""PyTorch/XLA's `core`: the module that its scripts import as `xm`."""
