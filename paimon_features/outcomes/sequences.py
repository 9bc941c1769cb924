"""Confidence sequences: intervals for a mean that hold at all times at once.

An interval of 95 % that is looked at after each row excludes the mean at some time far more often
than in 5 % of the cases. The intervals of a confidence sequence do so in at most a share ``alpha``
of the cases, however often they are looked at and whenever the looking ends: a test may be stopped
as soon as its interval excludes zero.

- ``bounded_mean`` is the predictable plug-in empirical Bernstein sequence of Waudby-Smith and
  Ramdas, "Estimating means of bounded random variables by betting" (Journal of the Royal
  Statistical Society B, 2024), theorem 2. It holds for any values in [0, 1] whose mean, given the
  values before, is the same; at every length.
- ``any_mean`` is the asymptotic sequence of Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas,
  "Time-uniform central limit theory and asymptotic confidence sequences" (Annals of Statistics,
  2024), theorem 2.2, for values without a known bound. As an interval from the central limit
  theorem, it holds approximately; it begins after ``LEAST`` values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from paimon_features.array_types import Floats

LEAST = 100
"""So many values an asymptotic interval needs."""
TUNED_FOR = 1_000
"""The number of values at which an asymptotic interval is tightest."""
MOST_BET = 0.5
"""The bound of the bets of ``bounded_mean``."""


@dataclass(frozen=True)
class ConfidenceSequence:
    """An interval after each value: shape (values,) each. An unknown bound is infinite."""

    low: Floats
    high: Floats

    def __len__(self) -> int:
        return len(self.low)

    def scaled(self, factor: float, offset: float) -> ConfidenceSequence:
        """The sequence for ``factor * mean + offset``; the factor is positive."""
        return ConfidenceSequence(self.low * factor + offset, self.high * factor + offset)

    def first_without(self, value: float) -> int | None:
        """The number of values after which an interval excludes ``value`` first; None if never."""
        out = (self.low > value) | (self.high < value)
        return int(np.argmax(out)) + 1 if out.any() else None


def bounded_mean(values: Floats, alpha: float) -> ConfidenceSequence:
    """The sequence for the mean of values in [0, 1]; holds with probability ``1 - alpha``.

    >>> found = bounded_mean(np.array([0.0, 1.0] * 500), 0.05)
    >>> round(float(found.low[-1]), 3), round(float(found.high[-1]), 3)
    (0.436, 0.562)
    """
    count = np.arange(1, len(values) + 1, dtype=np.float64)
    log = math.log(2 / alpha)
    # mean and variance up to each value, with one made-up value of mean 1/2 and variance 1/4
    means = (0.5 + np.cumsum(values)) / (count + 1)
    variances = (0.25 + np.cumsum((values - means) ** 2)) / (count + 1)
    means_before = np.concatenate([[0.5], means[:-1]])
    variances_before = np.concatenate([[0.25], variances[:-1]])
    # a bet depends on what was seen before it alone
    bets = np.minimum(np.sqrt(2 * log / (variances_before * count * np.log1p(count))), MOST_BET)
    # their factors 4 and 1/4 cancel
    risk = (values - means_before) ** 2 * (-np.log1p(-bets) - bets)
    total = np.cumsum(bets)
    centre = np.cumsum(bets * values) / total
    half = (log + np.cumsum(risk)) / total
    return ConfidenceSequence(np.maximum(centre - half, 0.0), np.minimum(centre + half, 1.0))


def any_mean(values: Floats, alpha: float) -> ConfidenceSequence:
    """The asymptotic sequence for the mean of values; infinite before ``LEAST`` of them.

    >>> found = any_mean(np.array([-1.0, 1.0] * 500), 0.05)
    >>> bool(np.isinf(found.low[98])), round(float(found.high[-1]), 3)
    (True, 0.096)
    """
    count = np.arange(1, len(values) + 1, dtype=np.float64)
    # around the first value: the difference of two large sums would have no digits left
    around = values - (values[0] if len(values) else 0.0)
    means = np.cumsum(around) / count
    variances = np.maximum(np.cumsum(around**2) / count - means**2, 0.0)
    centre = means + (values[0] if len(values) else 0.0)
    # the width that is least at TUNED_FOR values; their section 3.5
    rho2 = (-2 * math.log(alpha) + math.log(-2 * math.log(alpha) + 1)) / TUNED_FOR
    grown = count * rho2 + 1
    half = np.sqrt(variances * 2 * grown / (count**2 * rho2) * np.log(np.sqrt(grown) / alpha))
    half = np.where(count < LEAST, np.inf, half)
    return ConfidenceSequence(centre - half, centre + half)
