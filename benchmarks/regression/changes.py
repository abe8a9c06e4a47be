"""How much a speedup or a time has changed between two runs, and how far the runs' own noise leaves that open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy

#: Of the one-sided bounds: a change that is called a fall is one with this probability, by the noise of the runs alone.
CONFIDENCE = 0.99

#: By how much two processes that run the same differ, as a standard deviation of the ratio's logarithm: where their
#: memory happens to lie, which processors their threads get. It was 0.043 between nine pairs of processes that took
#: turns with mobilenet_v2 at 64 pixels, 5 ms a call; none of it goes away with more rounds.
PROCESS = 0.045

#: A series is known by its fastest tenth: other work on the machine only ever adds time, and where it has a core for
#: half of the rounds, their median says more of it than of the program.
QUANTILE = 0.1

MIN_ROUNDS = 6  # of fewer, the bootstrap says nothing

DRAWS = 1000

Array = numpy.ndarray[Any, Any]


class Series(NamedTuple):
    """Milliseconds of paired rounds: in each, eager and the mode in question ran one after the other."""

    eager_ms: Sequence[float]
    mode_ms: Sequence[float]

    @property
    def speedup(self) -> float:
        """Over eager: what slows down both leaves it as it is."""
        return float(numpy.exp(_log_speedups(self, numpy.arange(len(self.mode_ms)))))


class Change(NamedTuple):
    """The speed after a change (over eager, or as it is) over the one before it: 1.0 where nothing changed, 1 / 1.15
    where the mode takes 15 % longer.

    Attributes:
        ratio: as measured.
        low, high: the bounds, each of which the true ratio passes with a probability of 1 - `CONFIDENCE`.
        draws: logarithms of the ratio as the bootstrap drew it.
    """

    ratio: float
    low: float
    high: float
    draws: Array

    def below(self, allowed: float) -> bool:
        """Whether it is a fall by more than the noise and a share of `allowed`."""
        return self.high < 1 - allowed

    def above(self, allowed: float) -> bool:
        """Whether it is a rise by more than the noise and a share of `allowed`."""
        return self.low > 1 / (1 - allowed)

    def vague(self, allowed: float) -> bool:
        """Whether the noise hides a fall by a share of twice `allowed`, so that more rounds are wanted."""
        return self.high > self.ratio * (1 + allowed)


def change(before: Series, after: Series, seed: int = 0) -> Change:
    """The change of a speedup between two runs apart from each other, with an interval from resampled rounds.

    Raises:
        ValueError: there are fewer than `MIN_ROUNDS` rounds.
    """
    generator = numpy.random.default_rng(seed)
    old, new = len(before.mode_ms), len(after.mode_ms)
    _check_enough(min(old, new))
    draws = _log_speedups(after, _resampled(new, generator)) - _log_speedups(before, _resampled(old, generator))
    return _change(float(numpy.log(after.speedup / before.speedup)), draws)


def change_in_turns(before_ms: Sequence[float], after_ms: Sequence[float], seed: int | Sequence[int] = 0) -> Change:
    """The change of a program's speed between two processes that took turns, round by round: it is that of the middle
    half of the rounds, each of which both had, and its interval is as wide as processes differ too (`PROCESS`).

    Eager's times say nothing more where both had the same rounds: to divide by them doubled the noise.

    Args:
        seed: another one for what is to be independent of it.

    Raises:
        ValueError: there are fewer than `MIN_ROUNDS` rounds.
    """
    rounds = min(len(before_ms), len(after_ms))
    _check_enough(rounds)
    generator = numpy.random.default_rng(seed)
    logs = numpy.log(numpy.asarray(before_ms[:rounds]) / numpy.asarray(after_ms[:rounds]))
    draws = _middle(logs[_resampled(rounds, generator)]) + generator.normal(0, PROCESS, DRAWS)
    return _change(float(_middle(logs)), draws)


def _check_enough(rounds: int) -> None:
    if rounds < MIN_ROUNDS:
        raise ValueError(f"{rounds} rounds are too few to tell a change from noise: {MIN_ROUNDS} is the least")


def _middle(logs: Array) -> Array:
    """The mean of the middle half along the last axis."""
    rounds = logs.shape[-1]
    return numpy.sort(logs, axis=-1)[..., rounds // 4 : rounds - rounds // 4].mean(axis=-1)


def mean(changes: Sequence[Change]) -> Change:
    """The geometric mean of several independent changes: of models, or of one model between several processes."""
    centre = float(numpy.mean([numpy.log(each.ratio) for each in changes]))
    return _change(centre, numpy.mean([each.draws for each in changes], axis=0))


def _change(centre: float, draws: Array) -> Change:
    low, high = numpy.exp(numpy.quantile(draws, [1 - CONFIDENCE, CONFIDENCE]))
    return Change(float(numpy.exp(centre)), float(low), float(high), draws)


def _log_speedups(series: Series, rounds: Array) -> Array:
    """Of the rounds with these numbers, along the last axis."""
    eager, mode = (numpy.asarray(times)[rounds] for times in series)
    return numpy.log(numpy.quantile(eager, QUANTILE, axis=-1) / numpy.quantile(mode, QUANTILE, axis=-1))


def _resampled(rounds: int, generator: numpy.random.Generator) -> Array:
    """Numbers of rounds drawn with replacement, a line for each draw. Whole blocks are drawn, since what disturbs one
    round often lasts into the next.
    """
    length = round(rounds ** (1 / 3))
    starts = generator.integers(0, rounds, (DRAWS, -(-rounds // length), 1))
    return ((starts + numpy.arange(length)) % rounds).reshape(DRAWS, -1)[:, :rounds]
