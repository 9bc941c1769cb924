"""Cleaning of data at hand: what to put where nothing is, and how far values may lie out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import TransformError
from paimon_features.core.types.array_types import Floats
from paimon_features.transformers.frames import missing, numbers, read_frame

STRATEGIES = ("mean", "median", "mode", "constant", "drop", "forward")
METHODS = ("iqr", "zscore", "winsorize")


class FeatureNormalizer:
    """Missing values and outliers, column by column; nothing is fitted or stored.

    Null and NaN are missing. What goes in comes out, as with a ``FeatureTransformer``.

    >>> FeatureNormalizer.handle_missing_values([[1.0, "a"], [None, "a"], [3.0, None]], "mode")
    [[1.0, 'a'], [1.0, 'a'], [3.0, 'a']]
    >>> FeatureNormalizer.handle_outliers([0.0, 1.0, 2.0, 3.0, 100.0], threshold=1.5)
    [0.0, 1.0, 2.0, 3.0, 6.0]
    """

    @staticmethod
    def handle_missing_values(X: Any, strategy: str = "mean", fill_value: Any = None) -> Any:
        """Return ``X`` with missing values replaced.

        ``mean`` and ``median`` of the column; ``mode``: its most frequent value, of several the
        least; ``constant``: ``fill_value`` (None: 0); ``drop``: rows with a missing value are
        left out; ``forward``: the value of the row before, and what is missing at the start
        stays so. A column without any value stays as it is, unless by ``constant``.

        Raises
        ------
        TransformError
            For another strategy, a mean or median of strings, or a constant of another type than
            the column.
        """
        if strategy not in STRATEGIES:
            raise TransformError(f"strategy={strategy!r}; expected one of: {', '.join(STRATEGIES)}")
        frame = read_frame(X)
        gaps = [missing(column) for column in frame.columns]
        if strategy == "drop":
            kept = np.flatnonzero(~np.logical_or.reduce(gaps)) if gaps else np.arange(frame.rows)
            return frame.like([column.take(kept) for column in frame.columns], rows=kept)
        columns = []
        for index, (column, gap) in enumerate(zip(frame.columns, gaps, strict=True)):
            if strategy in ("mean", "median"):
                column = Column(numbers(column, frame.label(index)), column.valid)
            if not gap.any():
                columns.append(column)
            elif strategy == "forward":
                last = np.maximum.accumulate(np.where(gap, -1, np.arange(len(gap))))
                filled = column.take(np.maximum(last, 0))
                columns.append(Column(filled.values, None if last[0] >= 0 else last >= 0))
            else:
                value = 0 if fill_value is None else fill_value
                if strategy != "constant":
                    value = _CENTRES[strategy](column.values[~gap]) if not gap.all() else None
                columns.append(_filled(column, gap, value, frame.label(index)))
        return frame.like(columns)

    @staticmethod
    def handle_outliers(X: Any, method: str = "iqr", threshold: float = 3.0) -> Any:
        """Return ``X`` with values outside of bounds moved onto them; missing values stay.

        The bounds of a column are, by ``method``: ``iqr`` from ``q1 - threshold * (q3 - q1)`` to
        ``q3 + threshold * (q3 - q1)`` of its quartiles; ``zscore`` ``mean ± threshold * std``
        (ddof 0); ``winsorize`` its ``threshold``-th and ``100 - threshold``-th percentile.
        Percentiles are interpolated linearly.

        Raises
        ------
        TransformError
            For another method, a threshold that is negative or (``winsorize``) 50 and more, or
            strings.
        """
        if method not in METHODS:
            raise TransformError(f"method={method!r}; expected one of: {', '.join(METHODS)}")
        most = 50.0 if method == "winsorize" else np.inf
        if not 0 <= threshold < most:
            raise TransformError(
                f"threshold={threshold!r} for {method}; expected from 0 to below {most:g}"
            )
        frame = read_frame(X)
        columns = []
        for index, column in enumerate(frame.columns):
            values = numbers(column, frame.label(index))
            present = values[~np.isnan(values)]
            if len(present):
                values = np.clip(values, *_bounds(present, method, threshold))
            columns.append(Column(values, column.valid))
        return frame.like(columns)


def _mode(values: Any) -> Any:
    distinct, counts = np.unique(values, return_counts=True)
    return distinct[np.argmax(counts)]


_CENTRES: Mapping[str, Callable[[Any], Any]] = {"mean": np.mean, "median": np.median, "mode": _mode}


def _filled(column: Column, gap: Any, value: Any, label: str) -> Column:
    if value is None:
        return column
    values = column.values
    if values.dtype == np.object_:
        kinds = {type(v) for v in values[~gap].tolist()} or {type(value)}
        if type(value) not in kinds:
            raise TransformError(
                f"{label} contains {', '.join(sorted(k.__name__ for k in kinds))}; "
                f"fill_value={value!r} is of another type"
            )
        out = values.copy()
    else:
        if isinstance(value, str) and not gap.all():
            raise TransformError(
                f"{label} contains numbers; fill_value={value!r} is of another type"
            )
        # 0.5 among integers makes floats of them
        out = values.astype(object if isinstance(value, str) else np.result_type(values, value))
    out[gap] = value
    return Column(out)


def _bounds(values: Floats, method: str, threshold: float) -> tuple[float, float]:
    if method == "zscore":
        centre, reach = float(np.mean(values)), threshold * float(np.std(values))
        return centre - reach, centre + reach
    ends = (25.0, 75.0) if method == "iqr" else (threshold, 100.0 - threshold)
    low, high = (float(q) for q in np.percentile(values, ends))
    reach = threshold * (high - low) if method == "iqr" else 0.0
    return low - reach, high + reach
