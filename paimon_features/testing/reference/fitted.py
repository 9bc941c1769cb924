"""One row through a fitted transformer, determined by its stored parameters alone: a loop per kind.

``row_of`` takes the parameters of an exported file unchanged, and Python values; None is
null, and NaN is a number that is not known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from paimon_features.testing.reference import categorical as reference_categorical
from paimon_features.testing.reference import models as reference_models
from paimon_features.testing.reference.numeric import NUMERIC_KINDS, Made, Row, of_each


def row_of(params: Mapping[str, Any], row: Row) -> Made:
    """Return what the transformer with these parameters makes of a row."""
    return KINDS[params["kind"]](params, row)


def _standard(params: Mapping[str, Any], index: int, value: float) -> float:
    n, centre = params["count"][index], params["mean"][index]
    if not n:
        return math.nan if params.get("with_mean", True) or params.get("with_std", True) else value
    deviation = math.sqrt(params["squares"][index] / n)
    constant = deviation <= abs(min(n, 10) * 2.0**-52 * centre)
    moved = value - centre if params.get("with_mean", True) else value
    return float(moved / (1.0 if constant or not params.get("with_std", True) else deviation))


def _min_max(params: Mapping[str, Any], index: int, value: float) -> float:
    low, high = params["min"][index], params["max"][index]
    if low is None:
        return math.nan
    start, end = params["feature_range"]
    scale = (end - start) / (1.0 if high - low < 10 * 2.0**-52 else high - low)
    scaled = float(value * scale + (start - low * scale))
    return scaled if math.isnan(scaled) or not params.get("clip") else min(max(scaled, start), end)


def _pipeline(params: Mapping[str, Any], row: Row) -> Made:
    values, failed = list(row), False
    for step in params["steps"]:
        # a null that a step makes stays null for the next one
        values, refused = row_of(step["transformer"], values)
        failed = failed or refused
    return values, failed


def _branches(params: Mapping[str, Any], row: Row) -> Made:
    out: list[Any] = []
    failed = False
    for branch in params["branches"]:
        values, refused = row_of(branch["transformer"], [row[i] for i in branch["columns"]])
        out += values
        failed = failed or refused
    return out, failed


KINDS: dict[str, Callable[[Mapping[str, Any], Row], Made]] = {
    "column_transformer": _branches,
    "frequency_encoder": reference_categorical.frequency,
    "frozen": lambda params, row: row_of(params["transformer"], row),
    "hashing_encoder": reference_categorical.hashing,
    "one_hot_encoder": reference_categorical.one_hot,
    "passthrough": of_each(lambda params, index, value: value),
    "pipeline": _pipeline,
    "target_encoder": reference_categorical.target,
    "standard_scaler": of_each(_standard),
    "min_max_scaler": of_each(_min_max),
    **NUMERIC_KINDS,
    **reference_models.KINDS,
}
