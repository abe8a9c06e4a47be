"""PyTorch/XLA's `experimental.distributed_checkpoint`: `torch.distributed.checkpoint` for xla tensors."""

from .manager import CheckpointManager
from .planners import SPMDLoadPlanner, SPMDSavePlanner
from .util import prime_optimizer

__all__ = ["CheckpointManager", "SPMDLoadPlanner", "SPMDSavePlanner", "prime_optimizer"]
