"""The mean difference of two versions' losses, by entity, at looks that share the error.

An interval that is looked at after each row excludes the truth at some time far more often than it
says. Here intervals are computed at rows 100, 150, 225, ...: the ``k``-th has the error
``alpha / (k (k + 1))``, whose sum over all looks is ``alpha``, so that all of them together hold
with probability ``1 - alpha``, however often they are read and whenever the reading ends. That is
the union bound over geometric epochs of Darling and Robbins, "Iterated logarithm inequalities"
(PNAS, 1967); it needs nothing of how rows depend on each other over time. Each interval is that of
a mean of clusters (``models.clustered_means``), a cluster for each entity: the split assigns
entities, and their rows are alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paimon_features.core.types.array_types import Floats, Ints
from paimon_features.models.clustered_means import (
    SEEN,
    ClusteredMean,
    PossibleOutcomes,
    rare_label_clusters,
)
from paimon_features.project.outcomes.losses import OutcomeLoss

FIRST_LOOK, GROWTH = 100, 1.5


@dataclass(frozen=True)
class Stream:
    """Rows of a version in the order of time: entities, labels and predictions, one length."""

    entities: Ints
    labels: Floats
    predictions: Floats

    def before(self, stop: int) -> Stream:
        """Return the first rows."""
        return Stream(self.entities[:stop], self.labels[:stop], self.predictions[:stop])

    def mean_loss(self, loss: OutcomeLoss) -> ClusteredMean:
        """Return the mean loss by entity."""
        return ClusteredMean.of(
            loss.of(self.labels, self.predictions),
            self.entities,
            possible=loss.possible(self.labels, self.predictions),
        )

    @property
    def is_enough(self) -> bool:
        """Whether enough entities have another label than the most frequent one."""
        return rare_label_clusters(self.labels, self.entities) >= SEEN


@dataclass(frozen=True)
class Look:
    """The interval after so many rows; infinite where too few entities are known."""

    rows: int
    low: float
    high: float

    def excludes(self, value: float) -> bool:
        """Return True if the value is outside."""
        return self.low > value or self.high < value


def look_rows(rows: int) -> list[int]:
    """Return the numbers of rows at which is looked, of at most so many.

    >>> look_rows(400)
    [100, 150, 225, 338]
    """
    counts = []
    at = float(FIRST_LOOK)
    while math.ceil(at) <= rows:
        counts.append(math.ceil(at))
        at *= GROWTH
    return counts


def paired_looks(loss: OutcomeLoss, first: Stream, second: Stream, alpha: float) -> list[Look]:
    """Return looks at the losses of the first minus those of the second, for the same rows."""

    def at(stop: int) -> ClusteredMean | None:
        rows, other = first.before(stop), second.before(stop)
        if not rows.is_enough:
            return None
        both = [loss.possible(rows.labels, stream.predictions) for stream in (rows, other)]
        possible = PossibleOutcomes(
            both[0].values - both[1].values, both[0].chances, both[0].happened
        )
        difference = loss.of(rows.labels, rows.predictions) - loss.of(
            rows.labels, other.predictions
        )
        return ClusteredMean.of(difference, rows.entities, possible=possible)

    return _looks(at, look_rows(len(first.labels)), alpha)


def split_looks(
    loss: OutcomeLoss, first: Stream, second: Stream, ends: Sequence[tuple[int, int]], alpha: float
) -> list[Look]:
    """Return looks at the mean losses of different entities: the first minus the second.

    ``ends`` are the rows of each up to a look: see ``ends_of_looks``.
    """

    def at(look: int) -> ClusteredMean | None:
        rows, other = first.before(ends[look][0]), second.before(ends[look][1])
        if not (rows.is_enough and other.is_enough):
            return None
        return rows.mean_loss(loss).minus(other.mean_loss(loss))

    looks = _looks(at, range(len(ends)), alpha)
    return [Look(sum(ends[look.rows]), look.low, look.high) for look in looks]


def _looks(
    at: Callable[[int], ClusteredMean | None], places: Sequence[int], alpha: float
) -> list[Look]:
    looks = []
    for number, place in enumerate(places, 1):
        mean = at(place)
        confidence = 1 - alpha / (number * (number + 1)) / 2
        if mean is None:
            looks.append(Look(place, -math.inf, math.inf))
        else:
            looks.append(Look(place, mean.low(confidence), mean.high(confidence)))
    return looks
