"""Statistics of a column from the aggregates in a view's tiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from paimon_features.core.columns.column import Column
from paimon_features.core.types.schema import String
from paimon_features.definitions import CompiledView
from paimon_features.definitions.aggregates import (
    ROWS,
    Aggregate,
    Count,
    CountBy,
    Histogram,
    Max,
    Min,
    Partial,
    Quantile,
    Reading,
    Variance,
)
from paimon_features.definitions.aggregates.basic import or_zero
from paimon_features.definitions.aggregates.moments import LIMB, SQUARE_UNITS
from paimon_features.transformers.column_statistics import (
    Category,
    ColumnStatistics,
    MomentSums,
    Statistic,
)

Merged = Mapping[str, Column]
"""Partials by name, one row each."""

_NO_READ = Reading(0, np.zeros(1, np.int64))
"""Smallest and greatest values do not depend on the time of a read."""


@dataclass(frozen=True)
class TileColumn:
    """The aggregates of a view that cover one column over all events; None if there is none.

    Aggregates with ``where=`` cover only some events, and are not used.
    """

    column: str
    view: CompiledView
    variance: Variance | None
    low: Min | None
    high: Max | None
    bins: Histogram | Quantile | None
    categories: CountBy | None
    counts: bool

    @classmethod
    def of(cls, view: CompiledView, column: str) -> TileColumn:
        """Return the aggregates of a column of the view's source, or of a derived column."""
        aggregates = [
            feature.aggregate
            for feature in view.features
            if feature.aggregate.column == column and feature.aggregate.where is None
        ]
        # smallest and greatest values of texts and dates are no range of numbers
        ordered = aggregates if view.scope.get(column, String).is_numeric else []
        counted = Count(column).partials(view.scope)[0].name if column in view.scope else ""
        return cls(
            column,
            view,
            next((aggregate for aggregate in aggregates if isinstance(aggregate, Variance)), None),
            next((aggregate for aggregate in ordered if isinstance(aggregate, Min)), None),
            next((aggregate for aggregate in ordered if isinstance(aggregate, Max)), None),
            next(
                (
                    aggregate
                    for aggregate in aggregates
                    if isinstance(aggregate, Histogram | Quantile)
                ),
                None,
            ),
            next(
                (
                    aggregate
                    for aggregate in aggregates
                    if isinstance(aggregate, CountBy) and aggregate.other
                ),
                None,
            ),
            counted in view.partial,
        )

    @property
    def available(self) -> frozenset[Statistic]:
        """The available statistics."""
        availability: dict[Statistic, bool] = {
            "moments": self.variance is not None,
            "range": self.low is not None and self.high is not None,
            "bins": self.bins is not None,
            "categories": self.categories is not None and self.counts,
        }
        return frozenset(name for name, is_available in availability.items() if is_available)

    @property
    def partials(self) -> Sequence[Partial]:
        """The partials to read."""
        kept = [self.variance, self.low, self.high, self.bins, self.categories]
        partials = [
            p for aggregate in kept if aggregate for p in aggregate.partials(self.view.scope)
        ]
        if self.counts:
            partials += Count(self.column).partials(self.view.scope)
        return [ROWS, *{p.name: p for p in partials}.values()]

    def statistics(self, merged: Merged) -> ColumnStatistics:
        """Return the statistics from merged partials."""
        rows = _integer(merged[ROWS.name])
        count = (
            _integer(merged[Count(self.column).partials(self.view.scope)[0].name])
            if self.counts
            else None
        )
        low, high = (self._extreme(extreme, merged) for extreme in (self.low, self.high))
        moments = None if self.variance is None else self._moments(self.variance, merged, low, high)
        bins = None if self.bins is None else tuple(self._counts(self.bins, merged))
        categories, other = self._categories(merged)
        return ColumnStatistics(
            self.column,
            rows,
            count,
            moments,
            low,
            high,
            "range" in self.available,
            None if self.bins is None else tuple(self.bins.edges),
            bins,
            categories,
            other,
        )

    def _moments(
        self, variance: Variance, merged: Merged, low: float | None, high: float | None
    ) -> MomentSums:
        scope = self.view.scope
        names = [p.name for p in variance.partials(scope)]
        values = [or_zero(merged[name])[0].item() for name in names]
        scale = variance.scale_of(scope)
        if scale is None:
            shifted, square, count = values
            return MomentSums.around(int(count), shifted, square, variance.center)
        total, high2, cross, low2, count = values
        square = (high2 << 32) + (cross << 17) + low2
        sums = MomentSums.exact(count, total, square, 10**scale)
        # a 64-bit sum that may have overflowed is useless
        if low is None or high is None:  # unknown: the largest possible event
            largest = float(min(variance.units_bound(scale), SQUARE_UNITS))
        else:
            largest = max(abs(low), abs(high)) * 10**scale + 1
        limb = LIMB if largest >= LIMB or (low or 0.0) < 0 else largest
        units = [largest, (largest / LIMB + 1) ** 2, (largest / LIMB + 1) * limb, limb**2]
        if max(units) * count >= 2**63 or sums.squares < 0:
            return MomentSums(count, sums.mean, sums.rest, 0.0, float("inf"))
        return sums

    def _extreme(self, aggregate: Min | Max | None, merged: Merged) -> float | None:
        if aggregate is None:
            return None
        merged_partials = [merged[p.name] for p in aggregate.partials(self.view.scope)]
        value = aggregate.finish(self.view.scope, merged_partials, _NO_READ).column
        return float(value.values[0]) if value.mask[0] else None

    def _counts(self, aggregate: Aggregate, merged: Merged) -> list[int]:
        return [_integer(merged[p.name]) for p in aggregate.partials(self.view.scope)]

    def _categories(self, merged: Merged) -> tuple[dict[Category, int] | None, int]:
        if self.categories is None:
            return None, 0
        *counts, other = self._counts(self.categories, merged)
        return dict(zip(self.categories.values, counts, strict=True)), other


def _integer(column: Column) -> int:
    return int(or_zero(column)[0])
