"""Operators of training steps: optimizers, loss scaling, barriers, assertions, fake quantization."""
