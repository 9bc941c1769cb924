"""Weights of rows: a row of weight 2 counts as two rows, one of weight 0 as none."""

from __future__ import annotations

from typing import Any

import numpy as np

from paimon_features.core.errors import TransformError
from paimon_features.core.types.array_types import Floats
from paimon_features.transformers.setting_checks import is_number


def checked_weights(sample_weight: Any, rows: int) -> Floats:
    """Return one weight per row; a number is the weight of every row.

    Raises
    ------
    TransformError
        Unless they are one finite number from 0 per row, at least one of them above 0.
    """
    if is_number(sample_weight):
        sample_weight = np.full(rows, float(sample_weight))
    try:
        weights = np.asarray(sample_weight, np.float64)
    except (TypeError, ValueError) as error:
        raise TransformError(f"sample_weight: expected one number per row: {error}") from error
    if weights.ndim != 1:
        raise TransformError(
            f"sample_weight has {weights.ndim} dimensions; sample weights must be 1D array or "
            "scalar"
        )
    if len(weights) != rows:
        raise TransformError(f"sample_weight has {len(weights)} weights for {rows} rows")
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise TransformError("sample_weight contains weights that are no finite number from 0")
    if rows and not weights.any():
        raise TransformError("sample_weight is zero in every row; expected a weight above 0")
    return weights
