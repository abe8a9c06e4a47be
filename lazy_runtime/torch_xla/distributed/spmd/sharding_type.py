"""The kinds of shardings, by PyTorch/XLA's names."""

from __future__ import annotations

from enum import IntEnum


class ShardingType(IntEnum):
    """What `XLAShardedTensor.sharding_type` says: a copy on each device, parts on all, or parts with copies."""

    REPLICATED = 0
    MAXIMAL = 1
    TUPLE = 2
    TILED = 3
    MANUAL = 4
    PARTIAL = 5
    UNKNOWN = 6


def of_text(text: str) -> ShardingType | None:
    """The kind of a sharding as XLA writes it; None for an empty text, of a tensor that is not sharded."""
    if not text:
        return None
    if text == "{replicated}":
        return ShardingType.REPLICATED
    return ShardingType.PARTIAL if "last_tile_dim_replicate" in text else ShardingType.TILED
