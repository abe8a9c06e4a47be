"""Random networks, trained three steps by eager PyTorch on the CPU and on all roads of this package."""

from .run import ROADS, check
from .sketch import generate
from .smaller import smaller, traits

__all__ = ["ROADS", "TRIES", "VAGUE", "check", "generate", "smaller", "traits"]

TRIES = 25  # runs of smaller programs, to find the smallest
#: How kinds of differences begin that may be of many causes.
VAGUE = ("gradient", "loss", " after", "the result", "torch's", "compiled: ")
