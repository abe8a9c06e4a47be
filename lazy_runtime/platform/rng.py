"""Where random operators get their seeds.

Each random operator takes one 64-bit seed as an input of its graph, so one executable gives other numbers at each run.
By default the seeds are drawn from torch's CPU generator: torch has no hook that tells an XLA device of
`torch.manual_seed`, `torch.set_rng_state` or `fork_rng`, and drawing from the generator that they act on follows all of
them. After `lazy_runtime.manual_seed` a device has a stream of its own, as in PyTorch/XLA, until
`RandomStream.follow_torch`. The state of such a stream is one number, which is what PyTorch/XLA's functions take.
"""

from __future__ import annotations

import torch

_INT64_MIN = -(2**63)
_MASK = 2**64 - 1
# Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (SplitMix64), 2014, with a state of 63 bits:
# it fits an int64 tensor, in which frameworks send it from process to process
_STATES = 2**63
_STEP = 0x9E3779B97F4A7C15


class RandomStream:
    """A stream of 64-bit seeds."""

    def __init__(self) -> None:
        self._state: int | None = None  # None: follows torch

    def draw(self, count: int, generator: torch.Generator | None = None) -> list[int]:
        """The next `count` seeds, of the stream or of the generator that the user passed to the operator, one of xla's
        or of the CPU's; one call for n gives what n calls for one give.
        """
        if generator is not None:
            generator = torch.ops.lazy_runtime.cpu_generator.default(generator)
        elif self._state is not None:
            return [self._next() for _ in range(count)]
        seeds = torch.empty(count, dtype=torch.int64, device="cpu")
        # from=min, to=None is the only way to ask for all 64 bits
        return seeds.random_(_INT64_MIN, None, generator=generator).tolist()

    def _next(self) -> int:
        assert self._state is not None
        self._state = (self._state + _STEP) % _STATES
        z = self._state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
        return (z ^ (z >> 31)) + _INT64_MIN

    def seed(self, seed: int) -> None:
        """From here on the seeds come from a stream of the device's own, which begins at `seed`."""
        self._state = int(seed) % _STATES

    def detach(self) -> int:
        """The number from which `seed` goes on as the stream itself will. A stream that follows torch ceases to: the
        state of torch's generator is 5056 bytes, so its next number takes its place.
        """
        if self._state is None:
            self.seed(self.draw(1)[0])
        assert self._state is not None
        return self._state

    def follow_torch(self) -> None:
        """From here on the seeds come from torch's CPU generator (the default)."""
        self._state = None

    def get_state(self) -> torch.Tensor:
        """What `set_state` takes: whether the stream is its own, and its state if so. The state of torch's CPU
        generator is torch's to keep.
        """
        if self._state is None:
            return torch.zeros(1, dtype=torch.uint8, device="cpu")
        return torch.tensor([1, *self._state.to_bytes(8, "little")], dtype=torch.uint8, device="cpu")

    def set_state(self, state: torch.Tensor) -> None:
        """Goes on from a state of `get_state`.

        Raises:
            TypeError: not a uint8 CPU tensor.
            RuntimeError: not a state of such a stream.
        """
        if not isinstance(state, torch.Tensor) or state.dtype != torch.uint8 or state.device.type != "cpu":
            raise TypeError("the state of an xla device's random numbers is a uint8 CPU tensor from get_rng_state()")
        own, *number = state.tolist() or [None]
        if (own, len(number)) not in ((0, 0), (1, 8)):
            raise RuntimeError(
                f"a state of {state.numel()} bytes is none of an xla device's random numbers: pass what "
                "torch.xla.get_rng_state() gave"
            )
        self._state = int.from_bytes(number, "little") % _STATES if own else None
