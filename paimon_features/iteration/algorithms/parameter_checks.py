"""Checks of parameters, in the constructor of an algorithm, and of what it is to learn from."""

from __future__ import annotations

from typing import Any

import numpy as np

from paimon_features.errors import DefinitionError, TransformError
from paimon_features.iteration.algorithms.training_blocks import TrainingBlock
from paimon_features.transformers.flink_ml import Model
from paimon_features.transformers.flink_ml.vectors import SparseRows, dense


def at_least(estimator: Any, least: float, *parameters: str) -> None:
    """DefinitionError for a parameter below ``least``."""
    for name in parameters:
        if not getattr(estimator, name) >= least:
            _wrong(estimator, name, f"{least} or more")


def within(estimator: Any, low: float, high: float, *parameters: str) -> None:
    """DefinitionError for a parameter outside ``[low, high]``."""
    for name in parameters:
        if not low <= getattr(estimator, name) <= high:
            _wrong(estimator, name, f"a number from {low} to {high}")


def one_of(estimator: Any, name: str, choices: tuple[str, ...]) -> None:
    """DefinitionError for a parameter that is none of the choices."""
    if getattr(estimator, name) not in choices:
        _wrong(estimator, name, f"one of: {', '.join(choices)}")


def finite(estimator: Any, rows: TrainingBlock) -> TrainingBlock:
    """The rows; TransformError where a number is NaN or infinite, or a weight below 0."""
    name = type(estimator).__name__
    held = rows.features.values if isinstance(rows.features, SparseRows) else rows.features
    # one pass without an array of its own; a sum may overflow, so it only makes suspicious
    with np.errstate(over="ignore", invalid="ignore"):
        suspicious = not np.isfinite(held.sum())
    if suspicious and not np.isfinite(held).all():
        features = dense(rows.features)
        row, feature = np.argwhere(~np.isfinite(features))[0].tolist()
        raise TransformError(
            f"{name}: row {row} has {features[row, feature]} as feature {feature}; expected finite "
            "numbers, so impute or clip them first"
        )
    for what, values in (("label", rows.labels), ("weight", rows.weights)):
        if values is not None and not np.isfinite(values).all():
            row = int(np.flatnonzero(~np.isfinite(values))[0])
            raise TransformError(
                f"{name}: row {row} has the {what} {values[row]}; expected finite numbers"
            )
    if rows.weights is not None and (rows.weights < 0).any():
        row = int(np.flatnonzero(rows.weights < 0)[0])
        raise TransformError(
            f"{name}: row {row} has the weight {rows.weights[row]:g}; expected 0 or more"
        )
    return rows


def zero_or_one(estimator: Any, rows: TrainingBlock) -> TrainingBlock:
    """The rows; TransformError for a label that is neither 0 nor 1."""
    assert rows.labels is not None
    wrong = ~np.isin(rows.labels, (0.0, 1.0))
    if wrong.any():
        raise TransformError(
            f"{type(estimator).__name__}: the label {rows.labels[wrong][0]:g}; expected 0 and 1: "
            "multinomial classification is not supported"
        )
    return rows


def started_from(estimator: Any, initial: Model, needed: str) -> Any:
    """The model data to start from; DefinitionError for a model of another kind."""
    data = initial.model_data
    if needed not in data:
        raise DefinitionError(
            f"{type(estimator).__name__}: initial= is a model with {', '.join(data)}; expected "
            f"one with {needed}"
        )
    return data


def _wrong(estimator: Any, name: str, expected: str) -> None:
    got = getattr(estimator, name)
    raise DefinitionError(f"{type(estimator).__name__}: {name}={got!r}; expected {expected}")
