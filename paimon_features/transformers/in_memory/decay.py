"""Time-decayed features of a list of values."""

from __future__ import annotations

from typing import Any

import numpy as np

from paimon_features.core.columns.column import Column
from paimon_features.core.columns.given_values import as_arrow, as_numbers, kind_of
from paimon_features.core.errors import DefinitionError, RequestError
from paimon_features.core.expressions import parse
from paimon_features.core.expressions.evaluate import Program
from paimon_features.core.times.utc_ms import utc_ms
from paimon_features.core.types.array_types import Floats
from paimon_features.core.types.schema import Float64, Timestamp
from paimon_features.transformers.in_memory.base import OnlineFeatureComputer


class TimeDecayFeatureBuilder(OnlineFeatureComputer):
    """Mean, sum or standard deviation with weights ``decay_factor ** age``.

    ``age`` is the newest timestamp minus the value's own, in the unit of the timestamps
    (milliseconds for times); without timestamps it is the number of later values. Nulls and NaN are
    left out. ``DecayedMean(half_life=h)`` has these weights for a factor of ``0.5 ** (1 / h)``.

    >>> TimeDecayFeatureBuilder(0.5).build([4.0, 1.0])
    {'weighted_mean': 2.0, 'weight_sum': 1.5, 'count': 2}

    Raises
    ------
    DefinitionError
        For a factor outside (0, 1], or an aggregation other than weighted_mean, weighted_sum and
        weighted_std.
    """

    AGGREGATIONS = ("weighted_mean", "weighted_sum", "weighted_std")

    def __init__(self, decay_factor: float, aggregation: str = "weighted_mean") -> None:
        if not 0 < decay_factor <= 1:
            raise DefinitionError(f"decay_factor={decay_factor!r}; expected above 0 and at most 1")
        if aggregation not in self.AGGREGATIONS:
            known_ones = ", ".join(self.AGGREGATIONS)
            raise DefinitionError(f"aggregation={aggregation!r}; expected one of: {known_ones}")
        self.decay_factor, self.aggregation = float(decay_factor), aggregation
        text = f"power({self.decay_factor!r}, age)"
        self._weights = Program([parse(text, {"age": Float64})])

    def build(self, values: Any, timestamps: Any = None) -> dict[str, Any]:
        """Return the aggregation under its name, ``weight_sum`` and ``count``.

        Without a value the sum is 0 and the others are None; the deviation uses the
        weights as they are (divided by their sum).

        Raises
        ------
        RequestError
            For timestamps of another length or with nulls, or values that are not numbers.
        """
        column = as_numbers("values", values)
        ages = _ages(timestamps, len(column))
        weights = self._weights.run({"age": Column(ages)}, len(ages))[0].values[column.mask]
        seen: Floats = column.values[column.mask]
        total = float(weights.sum())
        result = self._aggregate(weights, seen, total)
        return {self.aggregation: result, "weight_sum": total, "count": len(seen)}

    def compute(self, data: Any) -> dict[str, Any]:
        """Return ``build`` of the values, or of a tuple ``(values, timestamps)``."""
        return self.build(*data) if isinstance(data, tuple) and len(data) == 2 else self.build(data)

    def _aggregate(self, weights: Floats, values: Floats, total: float) -> float | None:
        weighted = float((weights * values).sum())
        if self.aggregation == "weighted_sum":
            return weighted
        if not total:
            return None
        mean = weighted / total
        if self.aggregation == "weighted_mean":
            return mean
        return float(np.sqrt((weights * (values - mean) ** 2).sum() / total))


def _ages(timestamps: Any, rows: int) -> Floats:
    """Return how much older each value is than the newest time."""
    if timestamps is None:
        return np.arange(rows - 1, -1, -1, dtype=np.float64)
    array = as_arrow(timestamps)
    if len(array) != rows:
        raise RequestError(f"{len(array)} timestamps for {rows} values; expected one for each")
    if array.null_count:
        raise RequestError(f"{array.null_count} timestamps are null; expected one for each value")
    if kind_of("timestamps", array.type) is Timestamp:
        array = utc_ms(array)
    times = array.to_numpy(zero_copy_only=False)
    # in the type of the times: float64 cannot represent all differences of large integers
    return (times.max() - times).astype(np.float64) if rows else np.zeros(0)
