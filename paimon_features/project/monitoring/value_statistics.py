"""Statistics of columns from their values, for events and features without tiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import RequestError
from paimon_features.core.types.array_types import Floats
from paimon_features.core.types.foreign_types import plain_type
from paimon_features.project.monitoring.drift import CATEGORIES
from paimon_features.transformers.column_statistics import Category, ColumnStatistics, MomentSums
from paimon_features.transformers.frames import missing

EDGES = 100
"""Approximate number of bins, of equal share in both ranges together, for plots."""


@dataclass
class ColumnValues:
    """All values of one numeric column, 8 bytes each, or the counts of categories."""

    column: str
    rows: int = 0
    parts: list[Floats] = field(default_factory=list)
    counts: Counter[Category] = field(default_factory=Counter)
    is_number: bool | None = None

    def add(self, array: pa.ChunkedArray) -> None:
        """Add the values of a chunk.

        Raises
        ------
        RequestError
            For values that are neither numbers nor categories, such as lists.
        """
        kind = plain_type(array.type)
        is_number = (
            pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        )
        if not is_number and not (pa.types.is_boolean(kind) or pa.types.is_string(kind)):
            raise RequestError(
                f"column {self.column!r} is {kind}; numbers, strings and booleans can be monitored"
            )
        self.is_number = is_number
        self.rows += len(array)
        column = Column.from_arrow(array)
        present = column.values[~missing(column)]
        if is_number:
            values = present.astype(np.float64)
            self.parts.append(values[np.isfinite(values)])
        else:
            self.counts.update(present.tolist())

    @property
    def values(self) -> Floats:
        """The finite values."""
        return np.concatenate([np.zeros(0), *self.parts])

    def statistics(
        self,
        edges: Sequence[float] = (),
        categories: Sequence[Category] | None = None,
        shares: Sequence[float] = (),
    ) -> ColumnStatistics:
        """Return the statistics, with counts between these edges or of these categories."""
        if not self.is_number:
            named = list(categories or ())
            counts = {value: self.counts[value] for value in named}
            total = self.counts.total()
            return ColumnStatistics(
                self.column, self.rows, total,
                categories=counts, other=total - sum(counts.values()),
            )  # fmt: skip
        values = self.values
        bins = None
        if len(edges):
            places = np.searchsorted(np.asarray(edges), values, side="right")
            bins = tuple(np.bincount(places, minlength=len(edges) + 1).tolist())
        mean = float(values.mean()) if len(values) else 0.0
        squares = float(np.sum((values - mean) ** 2))
        return ColumnStatistics(
            self.column,
            self.rows,
            len(values),
            MomentSums(len(values), mean, 0.0, squares),
            float(values.min()) if len(values) else None,
            float(values.max()) if len(values) else None,
            True,
            tuple(edges) if len(edges) else None,
            bins,
            quantiles={q: float(np.quantile(values, q)) for q in shares} if len(values) else None,
        )


def collect(columns: Sequence[str], tables: Iterable[pa.Table]) -> list[ColumnValues]:
    """Collect all values of these columns from several tables."""
    out = [ColumnValues(column) for column in columns]
    for table in tables:
        for values in out:
            values.add(table.column(values.column))
    return out


def compare(
    current: ColumnValues, reference: ColumnValues | None, shares: Sequence[float] = ()
) -> tuple[ColumnStatistics, ColumnStatistics | None]:
    """Return the statistics of both sides in bins of both together.

    ``shares`` are the quantiles to report. Bins of one side alone would fit it better than the
    other: its most frequent categories are less frequent on the other by chance alone.
    """
    sides = [side for side in (current, reference) if side is not None]
    of = current if reference is None or not reference.rows else reference
    for side in sides:
        if side.is_number is None:  # no values: the type of the other side
            side.is_number = of.is_number is not False
    if not of.is_number:
        both: Counter[Category] = Counter()
        for side in sides:
            both.update(side.counts)
        frequent = sorted(both.items(), key=lambda item: (-item[1], str(item[0])))
        named = [value for value, _ in frequent[:CATEGORIES]]
        statistics = [side.statistics(categories=named) for side in sides]
    else:
        edges = _edges(np.concatenate([side.values for side in sides]))
        statistics = [side.statistics(edges, shares=shares) for side in sides]
    return statistics[0], statistics[1] if reference is not None else None


def _edges(values: Floats) -> tuple[float, ...]:
    """Return edges of bins of about equal share; none without values."""
    if not len(values):
        return ()
    return tuple(np.unique(np.quantile(values, np.linspace(0, 1, EDGES + 1))).tolist())
