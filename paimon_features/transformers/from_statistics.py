"""Statistics of columns in the forms in which transformers keep what they have learnt."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paimon_features.array_types import Floats
from paimon_features.errors import TransformError
from paimon_features.transformers.bin_grid import Grid, GridCounts, edges_of
from paimon_features.transformers.category_index import Category, ascending
from paimon_features.transformers.column_moments import Moments
from paimon_features.transformers.column_statistics import (
    ColumnStatistics,
    known_categories,
    known_moments,
)


def moments_known(columns: Sequence[ColumnStatistics]) -> Moments:
    """The moments of columns; TransformError where one is not known, or ILL_CONDITIONED."""
    known = [known_moments(column) for column in columns]
    return Moments(
        np.array([m.count for m in known], np.float64),
        np.array([m.mean for m in known]),
        np.array([m.rest for m in known]),
        np.array([m.squares for m in known]),
    )


def extremes_known(columns: Sequence[ColumnStatistics]) -> tuple[Floats, Floats]:
    """The least and the greatest value of each column, NaN where there is none.

    Raises
    ------
    TransformError
        Where they are not known.
    """
    for column in columns:
        if not column.has_range:
            raise TransformError(f"column {column.column!r}: its range is not known")
    ends = [column.low for column in columns], [column.high for column in columns]
    low, high = (np.array([np.nan if v is None else v for v in end], np.float64) for end in ends)
    # of two zeros either could be the lesser: + 0.0 leaves one of them
    return low + 0.0, high + 0.0


def counts_known(columns: Sequence[ColumnStatistics]) -> list[dict[Category, int]]:
    """How often each category that came did, ascending, None (null) the last.

    Raises
    ------
    TransformError
        Where that is not known, or there were others than the declared ones.
    """
    out: list[dict[Category, int]] = []
    for index, column in enumerate(columns):
        seen = {value: times for value, times in known_categories(column).items() if times}
        if column.nulls:
            seen[None] = column.nulls
        out.append({value: seen[value] for value in ascending(seen, f"column {index}")})
    return out


def grid_known(
    columns: Sequence[ColumnStatistics], grid: Grid | None, of: str
) -> tuple[Grid, GridCounts]:
    """The counts of columns between their edges, and these as the grid of a transformer.

    Raises
    ------
    TransformError
        Where they are not known, or a declared grid has other edges.
    """
    low, high = extremes_known(columns)
    own: list[tuple[float, ...]] = []
    for column in columns:
        if column.edges is None or column.bins is None:
            raise TransformError(f"column {column.column!r}: its bins are not known")
        own.append(tuple(map(float, column.edges)))
    chosen: Grid = tuple(own) if grid is None else grid
    edges = edges_of(chosen, len(columns), of)
    for column, mine, wanted in zip(columns, own, edges, strict=True):
        if list(mine) != wanted.tolist():
            raise TransformError(
                f"{of}: the grid {wanted.tolist()} is not that of the bins of column "
                f"{column.column!r}, {list(mine)}; leave grid= out to take them"
            )
    counts = tuple(np.array(column.bins, np.int64) for column in columns)
    return chosen, GridCounts(tuple(edges), counts, low, high)
