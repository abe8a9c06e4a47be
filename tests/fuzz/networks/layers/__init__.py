"""The layers of which networks are made, by family. Importing a family registers its layers."""

from . import (
    attention,
    control,
    convolution,
    dense,
    dtypes,
    indexing,
    normalization,
    pointwise,
    pooling,
    recurrence,
    views,
)

__all__ = [
    "attention",
    "control",
    "convolution",
    "dense",
    "dtypes",
    "indexing",
    "normalization",
    "pointwise",
    "pooling",
    "recurrence",
    "views",
]
