"""Replacement of missing values, fitted from the present ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import MissingMethodError, TransformError
from paimon_features.core.types.array_types import Floats
from paimon_features.core.types.schema import DataType
from paimon_features.transformers.base import Applied, Params
from paimon_features.transformers.bin_grid import Grid, check_grid, grid_params
from paimon_features.transformers.column_statistics import ColumnStatistics, Statistic
from paimon_features.transformers.estimator import available_if
from paimon_features.transformers.frames import (
    Frame,
    as_float,
    inner_frame,
    missing,
    numbers,
    read_frame,
)
from paimon_features.transformers.from_statistics import counts_from, grid_from, moments_from
from paimon_features.transformers.imputer_statistics import (
    NO_GRID,
    Constants,
    Fill,
    Means,
    Medians,
    Modes,
    is_text,
)
from paimon_features.transformers.imputer_statistics import Statistic as Filling
from paimon_features.transformers.numeric_base import NumericTransformer
from paimon_features.transformers.setting_checks import flag, is_none, number, one_of

STRATEGIES = ("mean", "median", "most_frequent", "constant")
_LEARNS_FROM: Mapping[str, frozenset[Statistic]] = {
    # in addition, of each column how many values are missing
    "mean": frozenset({"moments"}),
    "median": frozenset({"bins", "range"}),
    "most_frequent": frozenset({"categories"}),
}


class Imputer(NumericTransformer):
    """Puts the mean, the median, the most frequent value or a constant where null or NaN is.

    ``missing_values`` is a number or a text that is missing, too. Of values as frequent the least
    counts. ``constant`` is ``fill_value``, by default 0, and
    ``missing_value`` among strings; strings are taken by it and by ``most_frequent``. A column in
    which nothing was seen is left out, unless ``keep_empty_features``: then it is filled with 0,
    or the constant. ``add_indicator`` adds, at the end, a column of 0 and 1 for each column in
    which something was missing when it was fitted. Medians are exact from ``fit``; over a
    ``grid`` of edges, parts and merges are exact, too, and a median is within the width of a bin.

    >>> imputer = Imputer(add_indicator=True).fit([[1.0, 7.0], [None, 8.0], [3.0, 9.0]])
    >>> imputer.transform([[None, None], [5.0, 6.0]])
    [[2.0, 8.0, 1.0], [5.0, 6.0, 0.0]]
    >>> imputer.names_out(["a", "b"])
    ['a', 'b', 'missingindicator_a']
    >>> imputer.inverse_transform([[2.0, 8.0, 1.0]])
    [[None, 8.0]]
    """

    kind = "imputer"
    optional_settings = frozenset({"copy", "missing_values"})
    _grid: Grid | None = None
    _marker: float | str | None = None
    """The value that is missing next to null and NaN; None if there is none."""
    _statistic: Any = None
    _gaps: Sequence[int] = ()
    _kept: Sequence[int] = ()
    _shown: Sequence[int] = ()
    _fills: Sequence[Fill] = ()

    def __init__(
        self,
        strategy: str = "mean",
        *,
        missing_values: float | str | None = np.nan,
        fill_value: float | str | None = None,
        copy: bool = True,
        add_indicator: bool = False,
        keep_empty_features: bool = False,
        grid: Sequence[Any] | None = None,
    ) -> None:
        self.strategy = strategy
        self.missing_values = missing_values
        self.copy = copy
        self.fill_value = fill_value
        self.add_indicator = add_indicator
        self.keep_empty_features = keep_empty_features
        self.grid = grid

    def _bind(self) -> None:
        super()._bind()
        self._grid = check_grid(self.settings_.grid, "Imputer")
        self._marker = self.settings_.missing_values

    @property
    def width(self) -> int:
        return len(self._gaps)

    @property
    def width_out(self) -> int:
        return len(self._kept) + len(self._shown)

    @property
    def numeric_output(self) -> bool:
        return not any(isinstance(fill, str) for fill in self._fills)

    @property
    def supports_matrix(self) -> bool:
        return self.numeric_output

    @property
    def is_stateful(self) -> bool:
        settings = self.settings_
        declared = settings.strategy == "constant" and settings.fill_value is not None
        return bool(not declared or settings.add_indicator or not settings.keep_empty_features)

    @property
    def supports_partial_fit(self) -> bool:
        return self.settings_.strategy != "median" or self.settings_.grid is not None

    @available_if(lambda self: None if self.supports_partial_fit else MissingMethodError(NO_GRID))
    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Fit on ``X`` in addition to earlier data; ``y`` is ignored; returns itself.

        For medians without a ``grid`` there is no such method: they need all data at once.
        """
        return self._fit_more(X)

    def accepts(self, index: int, kind: DataType) -> bool:
        if isinstance(self._fills[index], str):
            return kind.text == "string"
        return super().accepts(index, kind)

    def check(self, frame: Frame) -> None:
        for index, column in enumerate(frame.columns):
            expected = self._fills[index] if self.width else None
            has_texts = is_text(column)
            if not has_texts:
                numbers(column, frame.label(index))
            # nothing is known of the type of a column in which nothing was seen
            if (
                expected is not None
                and not missing(column).all()
                and isinstance(expected, str) != has_texts
            ):
                kinds = ("strings", "numbers") if has_texts else ("numbers", "strings")
                raise TransformError(
                    f"{frame.label(index)} contains {kinds[0]}; it was fitted on {kinds[1]}"
                )

    @property
    def statistics_(self) -> list[Fill]:
        """What each column is filled with; None for one that is left out."""
        self._check_fitted()
        return [fill if j in self._kept else None for j, fill in enumerate(self._fills)]

    @property
    def indicated_(self) -> list[int]:
        """The columns whose gaps are marked in a column of 0 and 1."""
        return list(self._shown)

    def names_out(self, names: Sequence[str]) -> list[str]:
        shown = [f"missingindicator_{names[j]}" for j in self._shown]
        return [*(names[j] for j in self._kept), *shown]

    def _absorb(self, other: Self) -> None:
        self._include(other._statistic, other._gaps)

    def block(self, values: Floats) -> Floats:
        gaps = np.isnan(values)
        if isinstance(self._marker, float):
            gaps |= values == self._marker
        np.copyto(values, self._numbers, where=gaps)
        if len(self._kept) == self.width and not self._shown:
            return values
        return np.concatenate([values[:, self._kept], gaps[:, self._shown]], axis=1)

    def apply(self, columns: Sequence[Column]) -> Applied:
        out = []
        columns = self._without_marker(columns)
        gaps = [missing(column) for column in columns]
        for j in self._kept:
            fill = self._fills[j]
            if isinstance(fill, str):
                values = columns[j].values.astype(np.object_)
                values[gaps[j]] = fill
            else:
                assert fill is not None
                values = np.where(gaps[j], fill, as_float(columns[j]))
            out.append(Column(values))
        return Applied(out + [Column(gaps[j].astype(np.float64)) for j in self._shown])

    def transform(self, X: Any) -> Any:
        """Return ``X`` without gaps.

        Raises
        ------
        TransformError
            For infinite values, strings in a column of numbers or the reverse, and where all
            columns would be left out.
        """
        self._check_fitted()
        if not self.width_out:
            raise TransformError(
                "no column had a value when this Imputer was fitted, so none is left; "
                "keep_empty_features=True keeps them"
            )
        return super().transform(X)

    @available_if(lambda self: None if self.settings_.add_indicator else _no_inverse())
    def inverse_transform(self, X: Any) -> Any:
        """Return ``X`` with its gaps, where indicators mark them.

        Raises
        ------
        TransformError
            For another number of columns. Without ``add_indicator`` the method is missing.
        """
        self._check_fitted()
        frame = read_frame(X)
        if frame.rows and frame.width != self.width_out:
            raise TransformError(f"got {frame.width} columns; expected {self.width_out}")
        if not frame.width:
            return frame.like([])
        flags = {
            j: numbers(frame.columns[len(self._kept) + at], frame.label(len(self._kept) + at)) > 0
            for at, j in enumerate(self._shown)
        }
        out = []
        for j in range(self.width):
            present = ~flags[j] if j in flags else np.ones(frame.rows, np.bool_)
            if j in self._kept:
                column = frame.columns[self._kept.index(j)]
                values, present = column.values, present & column.mask
            else:
                values, present = np.full(frame.rows, np.nan), np.zeros(frame.rows, np.bool_)
            if self._marker is not None and not present.all():
                values, present = (
                    np.where(present, values, self._marker),
                    np.ones(len(present), np.bool_),
                )
            out.append(Column(values, None if present.all() else present))
        names = self.names or tuple(f"x{index}" for index in range(self.width))
        return frame.like(out, names=names, flat=False)

    def _without_marker(self, columns: Sequence[Column]) -> Sequence[Column]:
        """Return columns in which ``missing_values`` is null."""
        marker = self._marker
        if marker is None:
            return columns
        out = []
        for column in columns:
            marked = np.array(column.values == marker, np.bool_)
            if is_text(column) == isinstance(marker, str) and marked.any():
                column = Column(column.values, column.mask & ~marked)
            out.append(column)
        return out

    def _partial_fit(self, frame: Frame) -> None:
        if self._marker is not None:
            columns = self._without_marker(frame.columns)
            frame = inner_frame(columns, rows=frame.rows, names=frame.names)
        strategy = self.settings_.strategy
        if strategy in ("most_frequent", "constant"):
            self.check(frame)  # the others take numbers only
        labels = [frame.label(j) for j in range(frame.width)]
        filling: Filling
        if strategy == "mean":
            filling = Means.of(frame.columns, labels)
        elif strategy == "median":
            filling = Medians.of(frame.columns, labels, self._grid)
        elif strategy == "most_frequent":
            filling = Modes.of(frame.columns, labels)
        else:
            filling = Constants.of(frame.columns, labels, self.settings_.fill_value)
        self._include(filling, [int(missing(column).sum()) for column in frame.columns])

    @property
    def required_statistics(self) -> frozenset[Statistic]:
        if not is_none(self.missing_values):
            return frozenset()
        return _LEARNS_FROM.get(self.settings_.strategy, frozenset())

    def _fit_statistics(self, columns: Sequence[ColumnStatistics], rows: int) -> None:
        filling: Filling
        if self.settings_.strategy == "mean":
            filling = Means(moments_from(columns))
        elif self.settings_.strategy == "median":
            self._grid, counts = grid_from(columns, self._grid, "Imputer")
            self.settings_.grid = grid_params(self._grid)
            filling = Medians(None, counts)
        else:
            filling = Modes.of_counts(counts_from(columns))
        self._take(filling, [column.nulls or 0 for column in columns])

    def _include(self, filling: Any, gaps: Sequence[int]) -> None:
        if self._statistic is not None:
            filling = self._statistic.merge(filling)
            gaps = [a + b for a, b in zip(self._gaps, gaps, strict=True)]
        self._take(filling, gaps)

    def _take(self, statistic: Any, gaps: Sequence[int]) -> None:
        self._statistic = statistic
        settings = self.settings_
        self._gaps = list(gaps)
        fills: list[Fill] = [] if statistic is None else statistic.fills
        self._kept = [
            j for j, fill in enumerate(fills) if fill is not None or settings.keep_empty_features
        ]
        self._shown = [j for j, n in enumerate(gaps) if n and settings.add_indicator]
        empty = 0.0 if settings.fill_value is None else settings.fill_value
        kept = set(self._kept)
        self._fills = [
            empty if fill is None and j in kept else fill for j, fill in enumerate(fills)
        ]
        self._numbers = np.array([f if isinstance(f, float) else np.nan for f in self._fills])

    def _settings(self) -> Params:
        strategy = one_of(self, "strategy", self.strategy, STRATEGIES)
        fill = self.fill_value
        if fill is not None and strategy != "constant":
            raise TransformError(f"fill_value={fill!r} is for 'constant', not {strategy!r}")
        if self.grid is not None and strategy != "median":
            raise TransformError(f"grid= is for 'median', not {strategy!r}")
        marker = None if is_none(self.missing_values) else self.missing_values
        if not isinstance(marker, str | None):
            marker = number(self, "missing_values", marker, "a finite number, a text, or NaN")
        if not isinstance(fill, str | None):
            fill = number(self, "fill_value", fill, "a finite number or a text")
        return {
            "strategy": strategy,
            "missing_values": marker,
            "fill_value": fill,
            "add_indicator": flag(self, "add_indicator", self.add_indicator),
            "keep_empty_features": flag(self, "keep_empty_features", self.keep_empty_features),
            "grid": grid_params(check_grid(self.grid, "Imputer")),
        }

    def _fitted_params(self) -> Params:
        return {**self._stored_settings(), "missing": self._gaps, **self._statistic.to_params()}

    @classmethod
    def _from_params(cls, params: Mapping[str, Any]) -> Self:
        out = cls._from_settings(params)
        statistic: Filling
        strategy = out.settings_.strategy
        if strategy == "mean":
            statistic = Means.from_params(params)
        elif strategy == "median":
            statistic = Medians.from_params(params, out._grid)
        elif strategy == "most_frequent":
            statistic = Modes.from_params(params)
        else:
            statistic = Constants.from_params(params, out.settings_.fill_value)
        gaps = [int(n) for n in params["missing"]]
        if not gaps or len(gaps) != len(statistic.fills):
            raise TransformError(f"{len(gaps)} counts of missing values of {len(statistic.fills)}")
        out._take(statistic, gaps)
        return out


def _no_inverse() -> MissingMethodError:
    return MissingMethodError("an Imputer without add_indicator=True has no inverse")
