"""An older name of what `distributed.spmd` registers: `torch.ops.xla.dynamo_mark_sharding`."""

from ..distributed.spmd.dynamo_mark_sharding import dynamo_mark_sharding

__all__ = ["dynamo_mark_sharding"]
