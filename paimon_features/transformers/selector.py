"""Selection of columns by what they could contribute."""

from __future__ import annotations

from typing import Any

import numpy as np

from paimon_features.core.errors import TransformError
from paimon_features.core.types.array_types import Floats
from paimon_features.transformers.column_moments import Moments
from paimon_features.transformers.frames import Frame, numbers, read_frame


class FeatureSelector:
    """Places of the ``k`` best columns, the best first; of equal ones the first comes first.

    Null and NaN are left out of a score; a column without a score (no value, or for a
    correlation nothing that varies) has 0.

    >>> FeatureSelector.select_by_variance([[1.0, 5.0, 0.0], [2.0, 9.0, 0.0]], k=2)
    [1, 0]
    >>> FeatureSelector.select_by_correlation([[1.0, 1.0], [2.0, 0.0], [3.0, 0.5]], [9, 8, 7], k=1)
    [0]
    """

    @staticmethod
    def select_by_variance(X: Any, k: int) -> list[int]:
        """Return columns by variance (ddof 0), the greatest first.

        Raises
        ------
        TransformError
            For strings, infinite values, or a ``k`` that is not from 1 to the number of columns.
        """
        matrix, frame = _matrix(X)
        moments = Moments.of(matrix)
        return _best(moments.squares / np.maximum(moments.count, 1.0), k, frame)

    @staticmethod
    def select_by_correlation(X: Any, y: Any, k: int) -> list[int]:
        """Return columns by the absolute Pearson correlation with ``y``, the greatest first.

        A row counts for a column if both its value and that of ``y`` are there.

        Raises
        ------
        TransformError
            As ``select_by_variance``; also for a ``y`` that is not one column of as many rows.
        """
        matrix, frame = _matrix(X)
        target, of_y = _matrix(y)
        if of_y.width != 1 or of_y.rows != frame.rows:
            raise TransformError(
                f"y has {of_y.rows} rows and {of_y.width} columns; expected {frame.rows} and 1"
            )
        scores = np.zeros(frame.width)
        for index in range(frame.width):
            both = np.column_stack([matrix[:, index], target[:, 0]])
            both = both[~np.isnan(both).any(axis=1)]
            moments = Moments.of(both)
            if not moments.squares.all():
                continue
            # index: (rows, the column and y)
            apart = (both - moments.mean) - moments.rest
            scale = np.sqrt(moments.squares[0]) * np.sqrt(moments.squares[1])
            scores[index] = abs(float(apart[:, 0] @ apart[:, 1]) / scale)
        return _best(scores, k, frame)


def _matrix(data: Any) -> tuple[Floats, Frame]:
    frame = read_frame(data)
    columns = [numbers(column, frame.label(i)) for i, column in enumerate(frame.columns)]
    return np.column_stack(columns) if columns else np.zeros((frame.rows, 0)), frame


def _best(scores: Floats, k: int, frame: Frame) -> list[int]:
    if not 1 <= k <= frame.width:
        raise TransformError(f"k={k!r}; expected 1 to {frame.width}, the number of columns")
    return [int(index) for index in np.argsort(-scores, kind="stable")[:k]]
