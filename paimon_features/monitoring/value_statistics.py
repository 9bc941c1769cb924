"""Statistics of columns from their values, for events and features without tiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from paimon_features.array_types import Floats
from paimon_features.columns import Column
from paimon_features.errors import RequestError
from paimon_features.transformers.column_statistics import Category, ColumnStatistics, MomentSums
from paimon_features.transformers.frames import missing

EDGES = 100
"""Approximate number of bins, of equal share in the reference, for plots."""
CATEGORIES = 50
"""Number of most frequent categories; all others are counted together."""


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
        kind = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
        is_number = (
            pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        )
        if not is_number and not (
            pa.types.is_boolean(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)
        ):
            raise RequestError(
                f"column {self.column!r} is {kind}; numbers, strings and booleans can be monitored"
            )
        self.is_number = is_number
        self.rows += len(array)
        column = Column.from_arrow(array)
        known = column.values[~missing(column)]
        if is_number:
            values = known.astype(np.float64)
            self.parts.append(values[np.isfinite(values)])
        else:
            self.counts.update(known.tolist())

    @property
    def values(self) -> Floats:
        """The finite values."""
        return np.concatenate([np.zeros(0), *self.parts])

    def edges(self) -> tuple[float, ...]:
        """Return edges of bins of about equal share; none without values."""
        values = self.values
        if not len(values):
            return ()
        found = np.unique(np.quantile(values, np.linspace(0, 1, EDGES + 1)))
        return tuple(found.tolist())

    def statistics(
        self,
        edges: Sequence[float] = (),
        categories: Sequence[Category] | None = None,
        shares: Sequence[float] = (),
    ) -> ColumnStatistics:
        """Return the statistics, with counts between these edges or of these categories."""
        if not self.is_number:
            named = list(categories or ())
            known = {value: self.counts[value] for value in named}
            total = self.counts.total()
            return ColumnStatistics(
                self.column, self.rows, total,
                categories=known, other=total - sum(known.values()),
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
    """Return the statistics of both sides in the bins of the reference.

    ``shares`` are the quantiles to report.
    """
    of = current if reference is None or not reference.rows else reference
    for side in (current, reference):
        if side is not None and side.is_number is None:  # no values: the type of the other side
            side.is_number = of.is_number is not False
    if not of.is_number:
        frequent = sorted(of.counts.items(), key=lambda item: (-item[1], str(item[0])))
        named = [value for value, _ in frequent[:CATEGORIES]]
        other = None if reference is None else reference.statistics(categories=named)
        return current.statistics(categories=named), other
    edges = of.edges()
    other = None if reference is None else reference.statistics(edges, shares=shares)
    return current.statistics(edges, shares=shares), other
