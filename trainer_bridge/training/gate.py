"""Whether a version is better than another one on the same rows, by how much, and how sure that is.

Both predict the same rows: the mean of the differences of their losses has a smaller error than the
difference of their means. Rows of one entity resemble each other, and rare outcomes may be missing
among the rows: the bounds are those of ``paimon_features.models.clustered_means``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from paimon_features.core.errors import shortened
from paimon_features.core.types.array_types import Bools, Floats, Ints
from paimon_features.models.clustered_means import (
    SEEN,
    ClusteredMean,
    PossibleOutcomes,
    rare_label_clusters,
)
from paimon_features.models.metrics import log_losses

MAX_SEGMENTS = 50
_WORST_ERROR = 1e30


@dataclass(frozen=True, slots=True)
class Difference:
    """The mean of a candidate's loss minus that of another version, less is better.

    ``low`` and ``high`` are its one-sided bounds, each with the requested confidence: None for rows
    of a single entity, and where fewer than ten entities have another label than the most frequent
    one: the error is unknown. ``loss`` is the mean loss of the other version, over
    ``rows`` rows of ``entities`` entities.
    """

    mean: float
    low: float | None
    high: float | None
    loss: float
    rows: int
    entities: int

    @property
    def is_better(self) -> bool:
        """Whether the candidate is better, with that confidence."""
        return self.high is not None and self.high < 0

    @property
    def is_worse(self) -> bool:
        """Whether the candidate is worse, with that confidence."""
        return self.low is not None and self.low > 0

    def __str__(self) -> str:
        bounds = "no bounds: too few entities, or too few with a rare label"
        if self.low is not None and self.high is not None:
            bounds = f"{self.low:+.4g} to {self.high:+.4g}"
        return (
            f"{self.mean:+.4g} ({bounds}) from {self.loss:.4g}, {self.rows:,} rows of "
            f"{self.entities:,} entities"
        )


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """What a gate found; it is passed if there is no ``reason`` against it.

    ``segments`` are those with enough rows, as column=value.
    """

    overall: Difference
    segments: Mapping[str, Difference] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the candidate may replace the other version."""
        return not self.reasons


@dataclass(frozen=True)
class RowLosses:
    """The loss of each row, ``values``, of the labels ``labels``.

    ``possible`` are the losses by other labels, shape (rows, outcomes): every class, or the lowest
    and the highest value of a regression. None: nothing is known of them.
    """

    values: Floats
    labels: Floats | None = None
    possible: PossibleOutcomes | None = None

    def take(self, rows: Bools) -> RowLosses:
        """Return the losses of some rows."""
        labels = None if self.labels is None else self.labels[rows]
        possible = None if self.possible is None else self.possible.take(rows)
        return RowLosses(self.values[rows], labels, possible)


def losses(
    task: str,
    labels: Floats,
    predictions: npt.NDArray[Any],
    span: tuple[float, float] | None = None,
) -> RowLosses:
    """Return the loss of each row: log loss, or the squared error of a regression.

    ``labels`` are 0 and 1, class numbers or values; ``predictions`` have the shape (rows, width).
    ``span`` is the range of the labels that are known in addition to these. A prediction that is no
    finite number has the loss of one that is as wrong as can be.

    >>> losses("binary", np.array([1.0, 0.0]), np.array([[0.5], [0.5]])).values.round(3).tolist()
    [0.693, 0.693]
    """
    if task == "regression":
        extremes = np.array([labels.min(), labels.max(), *(span or ())])
        outcomes = np.array([extremes.min(), extremes.max()])
        values = _squared(predictions[:, 0], labels)
        possible = PossibleOutcomes(_squared(predictions[:, :1], outcomes))
        return RowLosses(values, labels, possible)
    chances = predictions.astype(np.float64)
    if task == "binary":
        chances = np.column_stack([1 - chances[:, 0], chances[:, 0]])
    chances = np.where(np.isfinite(chances), chances, 0.0)
    by_class = np.asarray(log_losses(chances), np.float64)
    classes = (labels > 0.5 if task == "binary" else labels).astype(np.int64)
    values = by_class[np.arange(len(labels)), classes]
    return RowLosses(values, labels, PossibleOutcomes(by_class, chances, classes))


def _squared(predictions: npt.NDArray[Any], labels: Floats) -> Floats:
    errors = (predictions.astype(np.float64) - labels) ** 2
    return np.where(np.isfinite(errors), errors, _WORST_ERROR)


def compare(
    candidate: RowLosses,
    other: RowLosses,
    entities: Ints,
    confidence: float,
    weights: Floats | None = None,
) -> Difference:
    """Compare the losses of two versions on the same rows.

    ``entities`` numbers the entity of each row, ``weights`` are those of the rows. There is at
    least one row.

    >>> first, second = RowLosses(np.array([1.0, 2.0])), RowLosses(np.array([2.0, 4.0]))
    >>> compare(first, second, np.array([0, 1]), 0.5).mean
    -1.5
    """
    possible = None
    if candidate.possible is not None and other.possible is not None:
        possible = PossibleOutcomes(
            candidate.possible.values - other.possible.values,
            other.possible.chances,
            other.possible.happened,
        )
    difference = candidate.values - other.values
    interval = ClusteredMean.of(difference, entities, weights, possible)
    loss = float(np.average(other.values, weights=weights))
    labels = candidate.labels
    is_known = labels is None or rare_label_clusters(labels, entities) >= SEEN
    low = high = None
    if interval.clusters > 1 and is_known:
        low, high = interval.low(confidence), interval.high(confidence)
    return Difference(interval.mean, low, high, loss, interval.rows, interval.clusters)


def judge(
    candidate: RowLosses,
    other: RowLosses,
    entities: Ints,
    segments: Mapping[str, Sequence[Any]],
    *,
    confidence: float,
    tolerance: float,
    segment_rows: int,
    weights: Floats | None = None,
) -> GateVerdict:
    """Decide whether a candidate may replace another version, by their losses on the same rows.

    It may if its loss is lower with the confidence, and in no segment higher by more than the share
    ``tolerance`` of the other's loss there. ``segments`` are values of each row by column; a value
    with fewer than ``segment_rows`` rows is no segment, and of a column at most ``MAX_SEGMENTS``
    are, those with most rows.
    """
    overall = compare(candidate, other, entities, confidence, weights)
    reasons = []
    if not overall.is_better:
        reasons.append(f"its loss is not lower with a confidence of {confidence:.3%}: {overall}")
    differences: dict[str, Difference] = {}
    for column, values in segments.items():
        texts = np.array([str(value) for value in values])
        distinct, counts = np.unique(texts, return_counts=True)
        order = np.argsort(-counts, kind="stable")[:MAX_SEGMENTS]
        for value in distinct[order[counts[order] >= segment_rows]]:
            rows = texts == value
            name = f"{column}={shortened(str(value))}"
            segment_weights = None if weights is None else weights[rows]
            differences[name] = compare(
                candidate.take(rows), other.take(rows), entities[rows], confidence, segment_weights
            )
            if differences[name].mean > tolerance * differences[name].loss:
                reasons.append(
                    f"in the segment {name} its loss is higher by more than {tolerance:.3%}: "
                    f"{differences[name]}"
                )
    return GateVerdict(overall, differences, tuple(reasons))


def out_of_range(
    task: str, predictions: npt.NDArray[Any], bounds: tuple[float, float] | None = None
) -> str | None:
    """Return what is wrong with predictions of the shape (rows, width); None if nothing is.

    Probabilities are in [0, 1], those of classes add up to 1, and values of a regression are
    within ``bounds``.

    >>> out_of_range("binary", np.array([[0.5], [np.nan]]))
    '1 of 2 predictions are not finite'
    """
    finite = np.isfinite(predictions).all(axis=1)
    low, high = (0.0, 1.0) if task != "regression" else bounds or (-math.inf, math.inf)
    inside = ((predictions >= low) & (predictions <= high)).all(axis=1)
    checks = [(~finite, "are not finite"), (~inside, f"are not in [{low:g}, {high:g}]")]
    if task == "multiclass":
        total = np.abs(predictions.sum(axis=1) - 1) > 1e-3
        checks.append((total, "do not add up to 1"))
    for wrong, problem in checks:
        if wrong.any():
            return f"{int(wrong.sum()):,} of {len(predictions):,} predictions {problem}"
    return None
