"""Checks of parameters, in the constructor of an estimator, and of its training data."""

from __future__ import annotations

from typing import Any

import numpy as np

from paimon_features.core.errors import DefinitionError, TransformError
from paimon_features.iteration.algorithms.training_blocks import TrainingBlock
from paimon_features.transformers.flink_ml import Model
from paimon_features.transformers.flink_ml.vectors import SparseRows, dense


def at_least(estimator: Any, minimum: float, *parameters: str) -> None:
    """Raise DefinitionError for a parameter below ``minimum``."""
    for name in parameters:
        if not getattr(estimator, name) >= minimum:
            _invalid(estimator, name, f"{minimum} or more")


def above(estimator: Any, minimum: float, *parameters: str) -> None:
    """Raise DefinitionError for a parameter that is not greater than ``minimum``."""
    for name in parameters:
        if not getattr(estimator, name) > minimum:
            _invalid(estimator, name, f"a number above {minimum}")


def within(estimator: Any, low: float, high: float, *parameters: str) -> None:
    """Raise DefinitionError for a parameter outside ``[low, high]``."""
    for name in parameters:
        if not low <= getattr(estimator, name) <= high:
            _invalid(estimator, name, f"a number from {low} to {high}")


def one_of(estimator: Any, name: str, choices: tuple[str, ...]) -> None:
    """Raise DefinitionError for a parameter that is not among the choices."""
    if getattr(estimator, name) not in choices:
        _invalid(estimator, name, f"one of: {', '.join(choices)}")


def finite(estimator: Any, rows: TrainingBlock) -> TrainingBlock:
    """Return the rows; raise TransformError for NaN, infinite values and negative weights."""
    name = type(estimator).__name__
    values = rows.features.values if isinstance(rows.features, SparseRows) else rows.features
    # one pass without a temporary array; the sum may also overflow, so a second look decides
    with np.errstate(over="ignore", invalid="ignore"):
        suspicious = not np.isfinite(values.sum())
    if suspicious and not np.isfinite(values).all():
        features = dense(rows.features)
        row, feature = np.argwhere(~np.isfinite(features))[0].tolist()
        raise TransformError(
            f"{name}: row {row} has {features[row, feature]} as feature {feature}; expected finite "
            "numbers, so impute or clip them first"
        )
    for kind, numbers in (("label", rows.labels), ("weight", rows.weights)):
        if numbers is not None and not np.isfinite(numbers).all():
            row = int(np.flatnonzero(~np.isfinite(numbers))[0])
            raise TransformError(
                f"{name}: row {row} has the {kind} {numbers[row]}; expected finite numbers"
            )
    if rows.weights is not None and (rows.weights < 0).any():
        row = int(np.flatnonzero(rows.weights < 0)[0])
        raise TransformError(
            f"{name}: row {row} has the weight {rows.weights[row]:g}; expected 0 or more"
        )
    return rows


def zero_or_one(estimator: Any, rows: TrainingBlock) -> TrainingBlock:
    """Return the rows; raise TransformError for a label that is neither 0 nor 1."""
    assert rows.labels is not None
    invalid = ~np.isin(rows.labels, (0.0, 1.0))
    if invalid.any():
        raise TransformError(
            f"{type(estimator).__name__}: the label {rows.labels[invalid][0]:g}; expected 0 and 1: "
            "multinomial classification is not supported"
        )
    return rows


def initial_data(estimator: Any, initial: Model, required: str) -> Any:
    """Return the data of an initial model; DefinitionError for a model of another kind."""
    data = initial.model_data
    if required not in data:
        raise DefinitionError(
            f"{type(estimator).__name__}: initial= is a model with {', '.join(data)}; expected "
            f"one with {required}"
        )
    return data


def _invalid(estimator: Any, name: str, expected: str) -> None:
    value = getattr(estimator, name)
    raise DefinitionError(f"{type(estimator).__name__}: {name}={value!r}; expected {expected}")
