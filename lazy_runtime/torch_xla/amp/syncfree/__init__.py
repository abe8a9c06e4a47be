"""Optimizers that skip a step with infinite gradients without the host's knowing, so that nothing is read in a step."""

from __future__ import annotations

from .adam import Adam, AdamW
from .sgd import SGD

__all__ = ["SGD", "Adam", "AdamW"]
