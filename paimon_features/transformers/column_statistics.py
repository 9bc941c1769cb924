"""What is known of a column without its values: what transformers are fitted from.

Such statistics come from merged tiles (``project.monitoring``), exactly where their sums are exact,
and otherwise with the condition number that says how far they can be trusted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from paimon_features.core.errors import TransformError

Category = bool | int | float | str | None

Statistic = Literal["moments", "range", "bins", "categories"]
"""A part of what can be known of a column: mean and deviation, least and greatest, counts."""

MAX_CONDITION = 2.0**34
"""Greatest condition number of a variance from float sums that is returned (6 digits left)."""


@dataclass(frozen=True, slots=True)
class MomentSums:
    """Mean and squared distances of ``count`` values.

    The mean is ``mean + rest``; ``squares`` is the sum of squared distances from it. ``condition``
    is by how much rounding of the sums is magnified in ``squares``: 1 where the sums are exact.
    """

    count: int
    mean: float
    rest: float
    squares: float
    condition: float = 1.0

    @classmethod
    def exact(cls, count: int, total: int, square: int, unit: int) -> MomentSums:
        """Build from exact sums of integers that count units of ``1 / unit``, rounded once.

        >>> MomentSums.exact(2, 300, 50_000, 100)
        MomentSums(count=2, mean=1.5, rest=0.0, squares=0.5, condition=1.0)
        """
        if not count:
            return cls(0, 0.0, 0.0, 0.0)
        mean = Fraction(total, count * unit)
        squares = Fraction(count * square - total * total, count * unit * unit)
        return cls(count, float(mean), float(mean - Fraction(float(mean))), float(squares))

    @classmethod
    def around(cls, count: int, shifted: float, square: float, center: float) -> MomentSums:
        """Build from float sums of ``v - center`` and of its square.

        The relative error of ``squares`` is at most about ``n * eps * condition``, and the mean is
        off by ``n * eps`` times the mean distance from the center (n: values, eps: 2.2e-16).

        >>> MomentSums.around(2, 3.0, 5.0, 10.0)
        MomentSums(count=2, mean=11.5, rest=0.0, squares=0.5, condition=10.0)
        """
        if not count:
            return cls(0, 0.0, 0.0, 0.0)
        # an exact difference of the two sums as they are: only their own rounding is magnified
        moved = Fraction(shifted) / count
        squares = max(Fraction(square) - Fraction(shifted) * moved, Fraction(0))
        mean = Fraction(center) + moved
        plain = count == 1 or not square
        condition = 1.0 if plain else float("inf") if not squares else float(square / squares)
        kept = 0.0 if plain else float(squares)
        return cls(count, float(mean), float(mean - Fraction(float(mean))), kept, condition)


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """What is known of one column; None is what is not known.

    ``rows`` counts all rows, ``count`` those with a value. ``bins`` has a number for each bin
    between ``edges``: below the first, ``edge <= value < next edge``, from the last edge on.
    ``categories`` has the count of each one, ``other`` that of all the rest.
    ``quantiles`` are exact ones, by their share, where the values were there.
    """

    column: str
    rows: int
    count: int | None = None
    moments: MomentSums | None = None
    low: float | None = None
    high: float | None = None
    has_range: bool = False
    edges: tuple[float, ...] | None = None
    bins: tuple[int, ...] | None = None
    categories: Mapping[Category, int] | None = None
    other: int = 0
    quantiles: Mapping[float, float] | None = None

    @property
    def nulls(self) -> int | None:
        """How many rows have no value."""
        return None if self.count is None else self.rows - self.count


def of_columns(columns: Sequence[ColumnStatistics]) -> int:
    """Return how many rows the columns have, which is one number.

    Raises
    ------
    TransformError
        For no column, or columns of different rows.
    """
    rows = {column.rows for column in columns}
    if len(rows) != 1:
        got = ", ".join(f"{c.column}: {c.rows:,}" for c in columns) or "no column"
        raise TransformError(f"expected statistics of the same rows, got {got}")
    return rows.pop()


def require_moments(column: ColumnStatistics) -> MomentSums:
    """Return the moments of a column.

    Raises
    ------
    TransformError
        Where there are none, or rounding has left too little of them (ILL_CONDITIONED).
    """
    if column.moments is None:
        raise TransformError(f"column {column.column!r}: its mean and deviation are not known")
    if column.moments.condition > MAX_CONDITION:
        raise TransformError(
            f"column {column.column!r} is ILL_CONDITIONED: the condition number of its deviation "
            f"is {column.moments.condition:.3g}, the most that float sums allow is "
            f"{MAX_CONDITION:.3g}; give the column scale=, or a center= near its mean"
        )
    return column.moments


def require_categories(column: ColumnStatistics) -> Mapping[Category, int]:
    """Return how often each category of a column came.

    Raises
    ------
    TransformError
        Where that is not known, or some were not distinguished.
    """
    if column.categories is None:
        raise TransformError(f"column {column.column!r}: its categories are not known")
    if column.other:
        raise TransformError(
            f"column {column.column!r} has {column.other:,} values that are none of the declared "
            "categories; declare them, or fit on the events (--from events)"
        )
    return column.categories
