"""Goodness of fit of samples: Kolmogorov-Smirnov where the distribution is continuous, chi-square where it is not."""

from __future__ import annotations

import numpy as np
import torch
from scipy import stats

N = 100_000
#: A right distribution gives a p-value below this once in ten thousand seeds, and the tests' seeds are fixed.
REJECTED = 1e-4
FLOATS = [torch.float32, torch.float64]
NARROW = [torch.bfloat16, torch.float16]


def empty(count=N, dtype=torch.float32):
    return torch.empty(count, dtype=dtype, device="xla")


def full(value, dtype=torch.float32, count=N):
    return torch.full((count,), value, dtype=dtype, device="xla")


def numbers(x):
    return x.detach().cpu().double().flatten().numpy()


def continuous(x, distribution):
    assert stats.kstest(numbers(x), distribution.cdf).pvalue > REJECTED


def discrete(x, distribution):
    """Chi-square over cells of about one percent each, the tails being two more."""
    x = numbers(x)
    edges = np.unique(distribution.ppf(np.linspace(0.01, 0.99, 99)))
    cells = np.diff(np.concatenate([[0], distribution.cdf(edges), [1]])) * x.size
    found = np.histogram(x, np.concatenate([[-np.inf], edges + 0.5, [np.inf]]))[0]
    table(found, cells)


def table(found, expected):
    """Chi-square of counts; cells that expect less than five are put together."""
    rare = expected < 5
    found = np.append(found[~rare], found[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    if expected[-1] < 5:
        assert found[-1] < 50  # which has a chance of 1e-30 at most
        found, expected = found[:-1], expected[:-1]
    if len(found) > 1:
        assert stats.chisquare(found, expected * found.sum() / expected.sum()).pvalue > REJECTED


def rare(count, total, probability):
    """The number of rare events."""
    assert stats.binomtest(int(count), total, probability).pvalue > REJECTED
