"""The metrics of a task with 95 % confidence intervals.

Those of ``paimon_features.models.metrics``: rows are weighted, and those of one entity are one
observation. The coefficient of determination has the interval of its linearization (the delta
method), the calibration error one of all errors that are near the observed ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from paimon_features.core.types.array_types import Floats, Ints
from paimon_features.models import Metric
from paimon_features.models.clustered_means import PossibleOutcomes
from paimon_features.models.metrics import (
    CalibrationBin,
    auc,
    calibration_curve,
    log_losses,
    mean_metric,
)

__all__ = [
    "CalibrationBin",
    "EvaluatedRows",
    "auc",
    "calibration_curve",
    "calibration_error",
    "evaluate",
]

_BINS = 10
_DRAWS = 2_000
_LEAST = 1e-15


@dataclass(frozen=True)
class EvaluatedRows:
    """What is known of rows besides labels and predictions: their entities, and their weights."""

    entities: Ints | None = None
    weights: Floats | None = None


PLAIN = EvaluatedRows()


def evaluate(
    task: str, labels: Floats, predictions: Floats, seed: int = 0, rows: EvaluatedRows = PLAIN
) -> dict[str, Metric]:
    """Return the metrics of a task.

    ``labels`` are 0 and 1 (binary), class numbers or values, shape (rows,). ``predictions`` are
    probabilities of true, shape (rows,), one per class, shape (rows, classes), or values.
    """
    clusters, weights = rows.entities, rows.weights

    def mean_of(values: Floats, possible: PossibleOutcomes | None = None) -> Metric:
        return mean_metric(values, clusters, weights, possible)

    if task == "regression":
        errors = (predictions - labels) ** 2
        metrics = {"mse": mean_of(errors), "mae": mean_of(np.abs(predictions - labels))}
        if labels.std() > 0:
            metrics["r2"] = _r2(labels, errors, rows)
        return metrics
    chances = np.column_stack([1 - predictions, predictions]) if task == "binary" else predictions
    classes = (labels > 0.5 if task == "binary" else labels).astype(np.int64)

    def by_class(losses: npt.NDArray[Any]) -> Metric:
        chosen = losses[np.arange(len(labels)), classes]
        return mean_of(chosen, PossibleOutcomes(losses, chances, classes))

    metrics = {"log_loss": by_class(log_losses(chances))}
    if task == "multiclass":
        right = chances.argmax(axis=1)[:, None] == np.arange(chances.shape[1])
        return {**metrics, "accuracy": by_class(right.astype(np.float64))}
    metrics["brier"] = by_class((predictions[:, None] - np.array([0.0, 1.0])) ** 2)
    metrics["calibration_error"] = calibration_error(labels, predictions, seed, rows)
    positive = labels > 0.5
    row_weights = np.ones(len(labels)) if weights is None else weights
    if row_weights[positive].sum() > 0 and row_weights[~positive].sum() > 0:
        metrics = {"auc": auc(labels, predictions, clusters, weights), **metrics}
    return metrics


def _r2(labels: Floats, errors: Floats, rows: EvaluatedRows) -> Metric:
    """Return one minus the error over the variance of the labels, linearized in both."""
    row_weights = np.ones(len(labels)) if rows.weights is None else rows.weights
    squares = (labels - np.average(labels, weights=row_weights)) ** 2
    variance = max(float(np.average(squares, weights=row_weights)), _LEAST)
    share = float(np.average(errors, weights=row_weights)) / variance
    value = 1 - share
    linear = value - (errors - share * squares) / variance
    return replace(mean_metric(linear, rows.entities, rows.weights), value=value)


def calibration_error(
    labels: Floats, probabilities: Floats, seed: int = 0, rows: EvaluatedRows = PLAIN
) -> Metric:
    """Return the mean difference of predicted and observed shares, over ten bins of equally many
    rows.

    Also of perfectly calibrated predictions the observed value is above 0, by the noise of the
    bins, and those of bootstrap samples are still higher. The interval is by the triangle
    inequality: the true value is at most as far from the observed one as the sum of the noise of
    the bins is large in 95 % of draws from its distribution, a normal one whose covariance is that
    of the entities (multiplier bootstrap: Chernozhukov, Chetverikov and Kato, Annals of
    Statistics, 2013), and at least that of labels drawn with the predicted probabilities.
    """
    count = len(labels)
    order = np.argsort(probabilities, kind="stable")
    bins = np.empty(count, np.int64)
    bins[order] = np.arange(count) * _BINS // max(count, 1)
    weights = np.ones(count) if rows.weights is None else rows.weights
    share = weights / weights.sum()
    difference = np.bincount(bins, share * (probabilities - labels), minlength=_BINS)
    value = float(np.abs(difference).sum())
    sizes = np.bincount(bins, share, minlength=_BINS)
    means = difference / np.where(sizes > 0, sizes, 1.0)
    noise = share * (probabilities - labels - means[bins])
    entities = np.arange(count) if rows.entities is None else rows.entities
    _, codes = np.unique(entities, return_inverse=True)
    clusters = int(codes.max()) + 1
    if clusters < 2:
        return Metric(value, rows=count, method="normal, by entity")
    sums = np.bincount(codes * _BINS + bins, noise, minlength=clusters * _BINS)
    sums = sums.reshape(clusters, _BINS)
    covariance = sums.T @ sums * (clusters / (clusters - 1))
    by_chance = np.bincount(
        bins, share**2 * probabilities * (1 - probabilities), minlength=_BINS
    )  # fmt: skip
    covariance[np.diag_indices(_BINS)] = np.maximum(covariance.diagonal(), by_chance)
    draws = np.random.default_rng(seed).multivariate_normal(
        np.zeros(_BINS), covariance, _DRAWS, check_valid="ignore"
    )
    far = float(np.quantile(np.abs(draws).sum(axis=1), 0.95))
    low, high = max(value - far, 0.0), min(value + far, 1.0)
    return Metric(value, low, high, count, "normal, by entity")
