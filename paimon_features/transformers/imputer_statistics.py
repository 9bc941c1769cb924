"""What an ``Imputer`` fills gaps with: one state for each of its strategies, learnt and merged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np

from paimon_features.array_types import Floats
from paimon_features.columns import Column
from paimon_features.errors import TransformError
from paimon_features.transformers.base import Params
from paimon_features.transformers.bin_grid import Grid, GridCounts, edges_of
from paimon_features.transformers.column_moments import Moments
from paimon_features.transformers.frames import missing, numbers
from paimon_features.transformers.json_values import nan_for_null, null_for_nan, same_length

Fill = float | str | None
"""What stands in for what is missing; None where nothing was seen."""

MOST_DISTINCT = 1 << 16
"""Most distinct values of a column whose most frequent one can be learnt."""

_PERCENTS = np.array([50.0])


class Statistic(Protocol):
    """What a strategy has learnt of each column."""

    @property
    def fills(self) -> list[Fill]:
        """What each column is filled with."""
        ...

    def merge(self, other: Self) -> Self:
        """Of the data of both."""
        ...

    def to_params(self) -> Params:
        """In values of JSON."""
        ...


def is_text(column: Column) -> bool:
    """Whether the values of a column are texts."""
    there = np.flatnonzero(~missing(column))[:1]
    return column.values.dtype == np.object_ and any(
        isinstance(value, str) for value in column.values[there]
    )


@dataclass(frozen=True)
class Means:
    """The mean of each column, by its moments."""

    moments: Moments

    @classmethod
    def of(cls, columns: Sequence[Column], labels: Sequence[str]) -> Self:
        """Of columns of numbers."""
        with np.errstate(over="ignore", invalid="ignore"):
            found = Moments.of_columns(
                [numbers(c, x) for c, x in zip(columns, labels, strict=True)]
            )
        wrong = ~np.isfinite(found.mean)
        if wrong.any():
            raise TransformError(
                f"{labels[int(np.flatnonzero(wrong)[0])]} has values whose range is beyond "
                "float64; divide it by its unit first"
            )
        return cls(found)

    @property
    def fills(self) -> list[Fill]:
        return [float(m) if n else None for n, m in self._pairs()]

    def _pairs(self) -> list[tuple[float, float]]:
        return list(zip(self.moments.count.tolist(), self.moments.mean.tolist(), strict=True))

    def merge(self, other: Self) -> Self:
        with np.errstate(over="ignore", invalid="ignore"):  # of squares, which no mean needs
            return type(self)(self.moments.merge(other.moments))

    def to_params(self) -> Params:
        return {
            "count": [int(n) for n in self.moments.count],
            "mean": self.moments.mean.tolist(),
            "mean_rest": self.moments.rest.tolist(),
        }

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Self:
        """The inverse of ``to_params``: without squares, which no mean needs."""
        count, mean, rest = same_length(params, "count", "mean", "mean_rest")
        return cls(Moments(count, mean, rest, np.zeros(len(count))))


@dataclass(frozen=True)
class Medians:
    """The median of each column: exact, or by counts over a grid."""

    exact: Floats | None
    counts: GridCounts | None

    @classmethod
    def of(cls, columns: Sequence[Column], labels: Sequence[str], grid: Grid | None) -> Self:
        """Of columns of numbers."""
        values = [numbers(c, x) for c, x in zip(columns, labels, strict=True)]
        if grid is not None:
            return cls(None, GridCounts.of(values, edges_of(grid, len(values), "Imputer")))
        known = [v[~np.isnan(v)] for v in values]
        return cls(np.array([np.median(v) if len(v) else np.nan for v in known]), None)

    @property
    def fills(self) -> list[Fill]:
        found = self.exact
        if self.counts is not None:
            found = self.counts.quantiles(_PERCENTS)[0]
        assert found is not None
        return [*null_for_nan(found)]

    def merge(self, other: Self) -> Self:
        if self.counts is None or other.counts is None:
            raise TransformError(
                "an Imputer of medians without a grid cannot be merged or fitted in parts: exact "
                "medians need all data at once; declare grid=[edges of bins]"
            )
        return type(self)(None, self.counts.merge(other.counts))

    def to_params(self) -> Params:
        if self.counts is not None:
            return self.counts.to_params()
        assert self.exact is not None
        return {"median": null_for_nan(self.exact)}

    @classmethod
    def from_params(cls, params: Mapping[str, Any], grid: Grid | None) -> Self:
        """The inverse of ``to_params``."""
        if grid is not None:
            return cls(None, GridCounts.from_params(params, grid, "Imputer"))
        return cls(nan_for_null(params["median"]), None)


@dataclass(frozen=True)
class Modes:
    """How often each value of each column was seen."""

    counts: tuple[Mapping[float | str, int], ...]

    @classmethod
    def of(cls, columns: Sequence[Column], labels: Sequence[str]) -> Self:
        """Of columns of numbers, or of texts."""
        found = []
        for column, label in zip(columns, labels, strict=True):
            # + 0.0: one zero
            values = column.values if is_text(column) else numbers(column, label) + 0.0
            distinct, times = np.unique(values[~missing(column)], return_counts=True)
            found.append(dict(zip(distinct.tolist(), times.tolist(), strict=True)))
        return cls(tuple(found))._checked()

    @classmethod
    def of_counts(cls, counts: Sequence[Mapping[Any, int]]) -> Self:
        """Of how often each category came; truth values are numbers, null is no value."""
        return cls(
            tuple(
                {v if isinstance(v, str) else float(v): n for v, n in each.items() if v is not None}
                for each in counts
            )
        )._checked()

    def _checked(self) -> Self:
        for index, counts in enumerate(self.counts):
            if len(counts) > MOST_DISTINCT:
                raise TransformError(
                    f"column {index} has {len(counts):,} distinct values, and the most frequent "
                    f"one is learnt of {MOST_DISTINCT:,} at most; impute the median"
                )
            if len({type(value) for value in counts}) > 1:
                raise TransformError(
                    f"column {index} holds numbers and texts; expected one of them"
                )
        return self

    @property
    def fills(self) -> list[Fill]:
        # of several as frequent the least
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
        """The inverse of ``to_params``."""
        pairs = [
            {v if isinstance(v, str) else float(v): int(n) for v, n in counts}
            for counts in params["counts"]
        ]
        return cls(tuple(pairs))._checked()


@dataclass(frozen=True)
class Constants:
    """A declared value; of each column whether it held texts (None: nothing)."""

    value: float | str | None
    texts: tuple[bool | None, ...]

    @classmethod
    def of(cls, columns: Sequence[Column], labels: Sequence[str], value: Fill) -> Self:
        """Of columns of numbers, or of texts, that the value fits to."""
        texts: list[bool | None] = []
        for column, label in zip(columns, labels, strict=True):
            own = is_text(column)
            if not own:
                numbers(column, label)
            if missing(column).all():
                texts.append(None)
                continue
            if value is not None and own != isinstance(value, str):
                kind = "texts" if own else "numbers"
                raise TransformError(f"{label} holds {kind}; fill_value={value!r} is none")
            texts.append(own)
        return cls(value, tuple(texts))

    @property
    def fills(self) -> list[Fill]:
        return [
            None if own is None else self.value if self.value is not None
            else "missing_value" if own else 0.0
            for own in self.texts
        ]  # fmt: skip

    def merge(self, other: Self) -> Self:
        out = []
        for index, (mine, theirs) in enumerate(zip(self.texts, other.texts, strict=True)):
            if None not in (mine, theirs) and mine != theirs:
                raise TransformError(
                    f"column {index} holds numbers and texts; expected one of them"
                )
            out.append(theirs if mine is None else mine)
        return type(self)(self.value, tuple(out))

    def to_params(self) -> Params:
        return {"texts": list(self.texts)}

    @classmethod
    def from_params(cls, params: Mapping[str, Any], value: Fill) -> Self:
        """The inverse of ``to_params``."""
        return cls(value, tuple(None if own is None else bool(own) for own in params["texts"]))
