"""Statistics of all events of a source: a feature view of the entity ``everything``.

The statistics that a scaler, an encoder or a drift report needs of a column (count, mean,
deviation, range, bins, categories) merge as features do. So they are stored as tiles like any
other view: filled by ``backfill``, updated by ``submit``, exact for late events, read as of any
time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paimon_features.core.errors import DefinitionError
from paimon_features.core.repeated_items import duplicates
from paimon_features.definitions.aggregates import (
    Aggregate,
    Count,
    CountBy,
    Histogram,
    Max,
    Min,
    StdDev,
)
from paimon_features.definitions.entity import EVERYTHING, Entity
from paimon_features.definitions.feature_view import FeatureView
from paimon_features.definitions.source import EventSource

everything = Entity(EVERYTHING, keys={})
"""The entity without keys: all events belong to it."""


@dataclass(frozen=True)
class Numbers:
    """Statistics of a numeric column: count, mean, deviation, least and greatest value.

    With ``scale`` (and for integers and decimals) mean and deviation come from exact sums of the
    values rounded to that many decimal places; for floats without it from sums around ``center``, a
    number near the mean. ``edges`` (``linear_edges``, ``log_edges``) add a counter for each bin,
    from which quantiles, PSI and KS are computed.
    """

    column: str
    scale: int | None = None
    center: float = 0.0
    edges: Sequence[float] | None = None

    def aggregates(self) -> list[Aggregate]:
        """Return the aggregates that store them."""
        kept: list[Aggregate] = [
            Count(self.column),
            StdDev(self.column, scale=self.scale, center=self.center),
            Min(self.column),
            Max(self.column),
        ]
        return kept if self.edges is None else [*kept, Histogram(self.column, edges=self.edges)]


@dataclass(frozen=True)
class Categories:
    """Statistics of a column of categories: the count of each of ``values``, and of all others.

    The values are texts, integers or booleans, 200 at most.
    """

    column: str
    values: Sequence[str | int | bool]

    def aggregates(self) -> list[Aggregate]:
        """Return the aggregates that store them."""
        name = _free_name(self.values)
        return [Count(self.column), CountBy(self.column, values=self.values, other=name)]


def statistics_view(
    name: str,
    source: EventSource,
    columns: Sequence[Numbers | Categories],
    *,
    tile: str = "1h",
    derive: Mapping[str, str] | None = None,
    where: str | None = None,
    description: str = "",
    owner: str = "",
    tags: Mapping[str, str] | None = None,
) -> FeatureView:
    """Return the feature view with statistics of these columns over all events of ``source``.

    ``columns`` name columns of the source or of ``derive``; ``where`` is a condition on the events.
    Time ranges that begin and end with a ``tile`` are read from tiles alone, others need the
    raw events at their ends.

    >>> from paimon_features.core.types.schema import Float64, Int64, String
    >>> schema = {"t": Int64, "amount": Float64, "country": String}
    >>> shop = EventSource("shop", schema=schema, event_time="t")
    >>> columns = [Numbers("amount", scale=2), Categories("country", ["FR", "DE"])]
    >>> view = statistics_view("shop_statistics", shop, columns)
    >>> [feature.name for feature in view.compiled.features][:3]
    ['count_amount', 'stddev_amount', 'min_amount']

    Raises
    ------
    DefinitionError
        As ``FeatureView`` does, and for a column that is named twice, or for none.
    """
    named = [column.column for column in columns]
    twice = next(iter(duplicates(named)), None)
    if twice is not None or not named:
        problem = "names no column" if twice is None else f"names the column {twice!r} twice"
        raise DefinitionError(f"statistics view {name!r} {problem}")
    return FeatureView(
        name,
        source=source,
        entity=everything,
        features=[aggregate for column in columns for aggregate in column.aggregates()],
        tile=tile,
        derive=derive or {},
        where=where,
        buckets=1,
        description=description,
        owner=owner,
        tags=tags or {},
    )


def _free_name(values: Sequence[str | int | bool]) -> str:
    """Return a name for all other categories that is not a category."""
    name = "other"
    while name in values:
        name += "_"
    return name
