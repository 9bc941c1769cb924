"""The fitted state of an ``Imputer``, one class per strategy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import TransformError
from paimon_features.core.types.array_types import Floats
from paimon_features.transformers.base import Params
from paimon_features.transformers.bin_grid import Grid, GridCounts, edges_of
from paimon_features.transformers.column_moments import Moments
from paimon_features.transformers.frames import missing, numbers
from paimon_features.transformers.json_values import nan_for_null, null_for_nan, same_length

Fill = float | str | None
"""The replacement for missing values; None for a column without values."""

MOST_DISTINCT = 1 << 16
"""Maximum number of distinct values for the strategy ``most_frequent``."""

_PERCENTS = np.array([50.0])


class Statistic(Protocol):
    """The fitted state of one strategy."""

    @property
    def fills(self) -> list[Fill]:
        """The replacement in each column."""
        ...

    def merge(self, other: Self) -> Self:
        """Return the state of the data of both."""
        ...

    def to_params(self) -> Params:
        """Return the state in JSON values."""
        ...


def is_text(column: Column) -> bool:
    """Return whether the values of a column are strings."""
    first_row = np.flatnonzero(~missing(column))[:1]
    return column.values.dtype == np.object_ and any(
        isinstance(value, str) for value in column.values[first_row]
    )


NO_GRID = (
    "an Imputer of medians without a grid cannot be merged or fitted in parts: exact medians need "
    "all data at once; declare grid=[edges of bins]"
)


@dataclass(frozen=True)
class Means:
    """The mean of each column, from its moments."""

    moments: Moments

    @classmethod
    def of(cls, columns: Sequence[Column], labels: Sequence[str]) -> Self:
        """Return the state of columns of numbers."""
        with np.errstate(over="ignore", invalid="ignore"):
            moments = Moments.of_columns(
                [numbers(c, x) for c, x in zip(columns, labels, strict=True)]
            )
        wrong = ~np.isfinite(moments.mean)
        if wrong.any():
            raise TransformError(
                f"{labels[int(np.flatnonzero(wrong)[0])]} has values whose range exceeds "
                "float64; divide it by its unit first"
            )
        return cls(moments)

    @property
    def fills(self) -> list[Fill]:
        return [float(m) if n else None for n, m in self._pairs()]

    def _pairs(self) -> list[tuple[float, float]]:
        return list(zip(self.moments.count.tolist(), self.moments.mean.tolist(), strict=True))

    def merge(self, other: Self) -> Self:
        with np.errstate(
            over="ignore", invalid="ignore"
        ):  # of squares, which the mean does not need
            return type(self)(self.moments.merge(other.moments))

    def to_params(self) -> Params:
        return {
            "count": [int(n) for n in self.moments.count],
            "mean": self.moments.mean.tolist(),
            "mean_rest": self.moments.rest.tolist(),
        }

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Self:
        """Return the inverse of ``to_params``, without squares, which the mean does not need."""
        count, mean, rest = same_length(params, "count", "mean", "mean_rest")
        return cls(Moments(count, mean, rest, np.zeros(len(count))))


@dataclass(frozen=True)
class Medians:
    """The median of each column: exact, or from counts over a grid."""

    exact: Floats | None
    counts: GridCounts | None

    @classmethod
    def of(cls, columns: Sequence[Column], labels: Sequence[str], grid: Grid | None) -> Self:
        """Return the state of columns of numbers."""
        values = [numbers(c, x) for c, x in zip(columns, labels, strict=True)]
        if grid is not None:
            return cls(None, GridCounts.of(values, edges_of(grid, len(values), "Imputer")))
        present = [v[~np.isnan(v)] for v in values]
        return cls(np.array([np.median(v) if len(v) else np.nan for v in present]), None)

    @property
    def fills(self) -> list[Fill]:
        medians = self.exact
        if self.counts is not None:
            medians = self.counts.quantiles(_PERCENTS)[0]
        assert medians is not None
        return [*null_for_nan(medians)]

    def merge(self, other: Self) -> Self:
        if self.counts is None or other.counts is None:
            raise TransformError(NO_GRID)
        return type(self)(None, self.counts.merge(other.counts))

    def to_params(self) -> Params:
        if self.counts is not None:
            return self.counts.to_params()
        assert self.exact is not None
        return {"median": null_for_nan(self.exact)}

    @classmethod
    def from_params(cls, params: Mapping[str, Any], grid: Grid | None) -> Self:
        """Return the inverse of ``to_params``."""
        if grid is not None:
            return cls(None, GridCounts.from_params(params, grid, "Imputer"))
        return cls(nan_for_null(params["median"]), None)


@dataclass(frozen=True)
class Modes:
    """The count of each value of each column."""

    counts: tuple[Mapping[float | str, int], ...]

    @classmethod
    def of(cls, columns: Sequence[Column], labels: Sequence[str]) -> Self:
        """Return the state of columns of numbers or strings."""
        counts = []
        for column, label in zip(columns, labels, strict=True):
            # + 0.0 normalizes the sign of zero
            values = column.values if is_text(column) else numbers(column, label) + 0.0
            distinct, times = np.unique(values[~missing(column)], return_counts=True)
            counts.append(dict(zip(distinct.tolist(), times.tolist(), strict=True)))
        return cls(tuple(counts))._checked()

    @classmethod
    def of_counts(cls, counts: Sequence[Mapping[Any, int]]) -> Self:
        """Return the state from category counts; booleans count as numbers, null is skipped."""
        return cls(
            tuple(
                {
                    v if isinstance(v, str) else float(v): n
                    for v, n in column_counts.items()
                    if v is not None
                }
                for column_counts in counts
            )
        )._checked()

    def _checked(self) -> Self:
        for index, counts in enumerate(self.counts):
            if len(counts) > MOST_DISTINCT:
                raise TransformError(
                    f"column {index} has {len(counts):,} distinct values; most_frequent "
                    f"supports at most {MOST_DISTINCT:,}; impute the median"
                )
            if len({type(value) for value in counts}) > 1:
                raise TransformError(
                    f"column {index} contains numbers and strings; expected one of them"
                )
        return self

    @property
    def fills(self) -> list[Fill]:
        # of equally frequent values the smallest
        return [
            min(counts, key=lambda value: (-counts[value], value)) if counts else None
            for counts in self.counts
        ]

    def merge(self, other: Self) -> Self:
        out = []
        for mine, theirs in zip(self.counts, other.counts, strict=True):
            both = dict(mine)
            for value, times in theirs.items():
                both[value] = both.get(value, 0) + times
            out.append(both)
        return type(self)(tuple(out))._checked()

    def to_params(self) -> Params:
        try:
            return {"counts": [sorted([v, n] for v, n in c.items()) for c in self.counts]}
        except TypeError as error:  # pragma: no cover - _checked has refused mixed types
            raise AssertionError(self.counts) from error

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Self:
        """Return the inverse of ``to_params``."""
        pairs = [
            {v if isinstance(v, str) else float(v): int(n) for v, n in counts}
            for counts in params["counts"]
        ]
        return cls(tuple(pairs))._checked()


@dataclass(frozen=True)
class Constants:
    """A declared value; for each column whether it had strings (None: no values)."""

    value: float | str | None
    texts: tuple[bool | None, ...]

    @classmethod
    def of(cls, columns: Sequence[Column], labels: Sequence[str], value: Fill) -> Self:
        """Return the state of columns of numbers or strings; the value must have their type."""
        texts: list[bool | None] = []
        for column, label in zip(columns, labels, strict=True):
            has_texts = is_text(column)
            if not has_texts:
                numbers(column, label)
            if missing(column).all():
                texts.append(None)
                continue
            if value is not None and has_texts != isinstance(value, str):
                kind = "strings" if has_texts else "numbers"
                raise TransformError(
                    f"{label} contains {kind}; fill_value={value!r} is of another type"
                )
            texts.append(has_texts)
        return cls(value, tuple(texts))

    @property
    def fills(self) -> list[Fill]:
        return [
            None if has_texts is None else self.value if self.value is not None
            else "missing_value" if has_texts else 0.0
            for has_texts in self.texts
        ]  # fmt: skip

    def merge(self, other: Self) -> Self:
        out = []
        for index, (mine, theirs) in enumerate(zip(self.texts, other.texts, strict=True)):
            if None not in (mine, theirs) and mine != theirs:
                raise TransformError(
                    f"column {index} contains numbers and strings; expected one of them"
                )
            out.append(theirs if mine is None else mine)
        return type(self)(self.value, tuple(out))

    def to_params(self) -> Params:
        return {"texts": list(self.texts)}

    @classmethod
    def from_params(cls, params: Mapping[str, Any], value: Fill) -> Self:
        """Return the inverse of ``to_params``."""
        return cls(
            value,
            tuple(None if has_texts is None else bool(has_texts) for has_texts in params["texts"]),
        )
