"""PyTorch/XLA's older home of `ParallelLoader`."""

from __future__ import annotations

from .parallel_loader import ParallelLoader

__all__ = ["ParallelLoader"]
