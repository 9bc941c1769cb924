"""Whether a version is better than another one on the same rows, by how much, and how sure that is.

Both predict the same rows: the mean of the differences of their losses has a smaller error than the
difference of their means. Rows of one entity resemble each other; the error of the mean is that of
clustered rows (Liang and Zeger 1986), a cluster for each entity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from paimon_features.array_types import Floats, Ints
from paimon_features.errors import shortened
from paimon_features.models.metrics import log_losses

MAX_SEGMENTS = 50
_WORST_ERROR = 1e30


@dataclass(frozen=True, slots=True)
class Difference:
    """The mean of a candidate's loss minus that of another version, less is better.

    ``low`` and ``high`` are its one-sided bounds, each with the requested confidence: None for rows
    of a single entity, whose error is unknown. ``loss`` is the mean loss of the other version, over
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
        bounds = "no bounds"
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


def losses(task: str, labels: Floats, predictions: npt.NDArray[Any]) -> Floats:
    """The loss of each row: log loss, or the squared error of a regression.

    ``labels`` are 0 and 1, class numbers or values; ``predictions`` have the shape (rows, width). A
    prediction that is no finite number has the loss of one that is as wrong as can be.

    >>> losses("binary", np.array([1.0, 0.0]), np.array([[0.5], [0.5]])).round(3).tolist()
    [0.693, 0.693]
    """
    if task == "regression":
        errors = (predictions[:, 0].astype(np.float64) - labels) ** 2
        return np.where(np.isfinite(errors), errors, _WORST_ERROR)
    if task == "binary":
        chosen = np.where(labels > 0.5, predictions[:, 0], 1 - predictions[:, 0])
    else:
        chosen = predictions[np.arange(len(labels)), labels.astype(np.int64)]
    chosen = np.where(np.isfinite(chosen), chosen, 0.0)
    return np.asarray(log_losses(chosen), np.float64)


def compare(candidate: Floats, other: Floats, entities: Ints, confidence: float) -> Difference:
    """Compare the losses of two versions on the same rows.

    ``entities`` numbers the entity of each row. There is at least one row.

    >>> compare(np.array([1.0, 2.0]), np.array([2.0, 4.0]), np.array([0, 1]), 0.5).mean
    -1.5
    """
    difference = candidate - other
    mean = float(difference.mean())
    rows = len(difference)
    _, cluster = np.unique(entities, return_inverse=True)
    sums = np.bincount(cluster, weights=difference - mean)
    count = len(sums)
    loss = float(other.mean())
    if count == 1:
        return Difference(mean, None, None, loss, rows, count)
    error = math.sqrt(float(sums @ sums) * count / (count - 1)) / rows
    half = NormalDist().inv_cdf(confidence) * error
    return Difference(mean, mean - half, mean + half, loss, rows, count)


def judge(
    candidate: Floats,
    other: Floats,
    entities: Ints,
    segments: Mapping[str, Sequence[Any]],
    *,
    confidence: float,
    tolerance: float,
    segment_rows: int,
) -> GateVerdict:
    """Decide whether a candidate may replace another version, by their losses on the same rows.

    It may if its loss is lower with the confidence, and in no segment higher by more than the share
    ``tolerance`` of the other's loss there. ``segments`` are values of each row by column; a value
    with fewer than ``segment_rows`` rows is no segment, and of a column at most ``MAX_SEGMENTS``
    are, those with most rows.
    """
    overall = compare(candidate, other, entities, confidence)
    reasons = []
    if not overall.is_better:
        reasons.append(f"its loss is not lower with a confidence of {confidence:.3%}: {overall}")
    found: dict[str, Difference] = {}
    for column, values in segments.items():
        texts = np.array([str(value) for value in values])
        known, counts = np.unique(texts, return_counts=True)
        order = np.argsort(-counts, kind="stable")[:MAX_SEGMENTS]
        for value in known[order[counts[order] >= segment_rows]]:
            rows = texts == value
            name = f"{column}={shortened(str(value))}"
            found[name] = compare(candidate[rows], other[rows], entities[rows], confidence)
            if found[name].mean > tolerance * found[name].loss:
                reasons.append(
                    f"in the segment {name} its loss is higher by more than {tolerance:.3%}: "
                    f"{found[name]}"
                )
    return GateVerdict(overall, found, tuple(reasons))


def out_of_range(
    task: str, predictions: npt.NDArray[Any], bounds: tuple[float, float] | None = None
) -> str | None:
    """What is wrong with predictions of the shape (rows, width); None if nothing is.

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
    for wrong, what in checks:
        if wrong.any():
            return f"{int(wrong.sum()):,} of {len(predictions):,} predictions {what}"
    return None
