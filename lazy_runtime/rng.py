"""Where random operators get their seeds.

Each random operator takes one 64-bit seed as an input of its graph, so one executable gives other numbers at each run.
By default the seeds are drawn from torch's CPU generator: torch has no hook that tells an XLA device of
`torch.manual_seed`, `torch.set_rng_state` or `fork_rng`, and drawing from the generator that they act on follows all of
them. After `lazy_runtime.manual_seed` a device has a stream of its own, as in PyTorch/XLA, until `torch.manual_seed`
is wanted back (`RandomStream.follow_torch`).
"""

from __future__ import annotations

import torch

_INT64_MIN = -(2**63)


class RandomStream:
    """A stream of 64-bit seeds."""

    def __init__(self) -> None:
        self._own: torch.Generator | None = None

    def draw(self, count: int, generator: torch.Generator | None = None) -> list[int]:
        """The next `count` seeds, of the stream or of the CPU generator that the user passed to the operator; one call
        for n gives what n calls for one give."""
        seeds = torch.empty(count, dtype=torch.int64, device="cpu")
        # from=min, to=None is the only way to ask for all 64 bits
        return seeds.random_(_INT64_MIN, None, generator=generator or self._own).tolist()

    def seed(self, seed: int) -> None:
        """From here on the seeds come from a generator of this stream's own, seeded with `seed`."""
        self._own = torch.Generator(device="cpu").manual_seed(seed)

    def follow_torch(self) -> None:
        """From here on the seeds come from torch's CPU generator (the default)."""
        self._own = None

    def get_state(self) -> torch.Tensor:
        """What `set_state` takes: whether the stream is its own, and its generator's state if so. The state of torch's
        CPU generator is torch's to keep."""
        if self._own is None:
            return torch.zeros(1, dtype=torch.uint8, device="cpu")
        own = torch.ones(1, dtype=torch.uint8, device="cpu")
        return torch.cat([own, self._own.get_state()])

    def set_state(self, state: torch.Tensor) -> None:
        """Goes on from a state of `get_state`.

        Raises:
            TypeError: not a uint8 CPU tensor.
        """
        if not isinstance(state, torch.Tensor) or state.dtype != torch.uint8 or state.device.type != "cpu":
            raise TypeError("the state of an xla device's random numbers is a uint8 CPU tensor from get_rng_state()")
        if not state[0]:
            self._own = None
            return
        own = torch.Generator(device="cpu")
        own.set_state(state[1:].clone())
        self._own = own
