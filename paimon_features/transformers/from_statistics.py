"""Fitted state of transformers from column statistics instead of values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paimon_features.core.errors import TransformError
from paimon_features.core.types.array_types import Floats
from paimon_features.transformers.bin_grid import Grid, GridCounts, edges_of
from paimon_features.transformers.category_index import Category, ascending
from paimon_features.transformers.column_moments import Moments
from paimon_features.transformers.column_statistics import (
    ColumnStatistics,
    require_categories,
    require_moments,
)


def moments_from(columns: Sequence[ColumnStatistics]) -> Moments:
    """Return the moments of columns; TransformError if unknown or ILL_CONDITIONED."""
    moments = [require_moments(column) for column in columns]
    return Moments(
        np.array([m.count for m in moments], np.float64),
        np.array([m.mean for m in moments]),
        np.array([m.rest for m in moments]),
        np.array([m.squares for m in moments]),
    )


def extremes_from(columns: Sequence[ColumnStatistics]) -> tuple[Floats, Floats]:
    """Return minimum and maximum of each column, NaN for a column without values.

    Raises
    ------
    TransformError
        If they are unknown.
    """
    for column in columns:
        if not column.has_range:
            raise TransformError(f"column {column.column!r}: its range is not known")
    ends = [column.low for column in columns], [column.high for column in columns]
    low, high = (np.array([np.nan if v is None else v for v in end], np.float64) for end in ends)
    # + 0.0 normalizes the sign of zero
    return low + 0.0, high + 0.0


def counts_from(columns: Sequence[ColumnStatistics]) -> list[dict[Category, int]]:
    """Return the counts of the categories that occurred, ascending, None (null) last.

    Raises
    ------
    TransformError
        If they are unknown, or categories occurred that were not declared.
    """
    out: list[dict[Category, int]] = []
    for index, column in enumerate(columns):
        seen = {value: times for value, times in require_categories(column).items() if times}
        if column.nulls:
            seen[None] = column.nulls
        out.append({value: seen[value] for value in ascending(seen, f"column {index}")})
    return out


def grid_from(
    columns: Sequence[ColumnStatistics], grid: Grid | None, of: str
) -> tuple[Grid, GridCounts]:
    """Return the edges of columns as a grid, and the counts between them.

    Raises
    ------
    TransformError
        If they are unknown, or a declared grid has other edges.
    """
    low, high = extremes_from(columns)
    given_edges: list[tuple[float, ...]] = []
    for column in columns:
        if column.edges is None or column.bins is None:
            raise TransformError(f"column {column.column!r}: its bins are not known")
        given_edges.append(tuple(map(float, column.edges)))
    chosen: Grid = tuple(given_edges) if grid is None else grid
    edges = edges_of(chosen, len(columns), of)
    for column, mine, wanted in zip(columns, given_edges, edges, strict=True):
        if list(mine) != wanted.tolist():
            raise TransformError(
                f"{of}: the grid {wanted.tolist()} does not equal the bins of column "
                f"{column.column!r}, {list(mine)}; omit grid= to use them"
            )
    counts = tuple(np.array(column.bins, np.int64) for column in columns)
    return chosen, GridCounts(tuple(edges), counts, low, high)
