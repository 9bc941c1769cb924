"""Columns of two ranges of the same distribution, or of one that is shifted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from paimon_features.core.types.array_types import Array
from paimon_features.project.monitoring.monitoring_report import ColumnReport
from paimon_features.project.monitoring.value_statistics import ColumnValues
from paimon_features.transformers.column_statistics import ColumnStatistics

KINDS = ("normal", "lognormal", "steps", "nulls", "rare", "categories", "many categories", "bins")
SHARES = (1 / np.arange(1, 301)) / (1 / np.arange(1, 301)).sum()
EDGES = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0)


def random_column(
    rng: Any, kind: str, sizes: tuple[int, int] | None = None, shift: float = 0.0
) -> ColumnReport:
    """The report of a random column; ``shift`` moves the current range, in deviations."""
    sizes = sizes or tuple(rng.choice([15, 60, 300, 2000], 2).tolist())
    current, reference = (
        _values(rng, kind, size, moved) for size, moved in zip(sizes, (shift, 0.0), strict=True)
    )
    if kind == "bins":  # as tiles have them: edges that were declared
        return ColumnReport.of(_tile(current), _tile(reference))
    return ColumnReport.of_values(_collected(current), _collected(reference))


def _values(rng: Any, kind: str, size: int, shift: float) -> Array:
    values: Array = rng.normal(shift, 1, size)
    if kind == "lognormal":
        return np.exp(2 * values)
    if kind == "steps":
        return np.round(values)
    if kind == "nulls":
        return np.where(rng.random(size) < 0.3, np.nan, values)
    if kind == "rare":
        return (rng.random(size) < 0.02).astype(float)
    if kind == "categories":
        return np.array(["a", "b", "c", "d"])[np.searchsorted([-1, 0, 1], values)]
    if kind == "many categories":
        return np.char.mod("c%d", rng.choice(300, size, p=SHARES))
    return values


def _collected(values: Array) -> ColumnValues:
    out = ColumnValues("x")
    out.add(pa.chunked_array([pa.array(values, from_pandas=True)]))
    return out


def _tile(values: Array) -> ColumnStatistics:
    places = np.searchsorted(EDGES, values, side="right")
    bins = np.bincount(places, minlength=len(EDGES) + 1).tolist()
    return ColumnStatistics("x", len(values), len(values), edges=EDGES, bins=tuple(bins))
