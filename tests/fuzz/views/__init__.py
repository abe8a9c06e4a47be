"""Random programs of views and writes, on the CPU and on the roads of xla."""

from .programs import generate
from .run import ROADS, check
from .smaller import smaller, traits

__all__ = ["ROADS", "TRIES", "VAGUE", "check", "generate", "smaller", "traits"]

TRIES = 200  # runs of smaller programs, to find the smallest
VAGUE = ("values", "reads")  # how kinds of differences begin that may be of many causes
