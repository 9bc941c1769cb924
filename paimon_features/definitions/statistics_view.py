"""Statistics of all events of a source: a feature view whose only entity is everything.

What a scaler, an encoder or a drift report needs to know of a column (how many values, their
mean, deviation, range, bins, categories) merges as features do. So it is kept as tiles like any
other: filled by ``backfill``, followed by ``submit``, exact for late events, read as of any time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paimon_features.aggregates import Aggregate, Count, CountBy, Histogram, Max, Min, StdDev
from paimon_features.definitions.entity import EVERYTHING, Entity
from paimon_features.definitions.feature_view import FeatureView
from paimon_features.definitions.source import EventSource
from paimon_features.errors import DefinitionError

everything = Entity(EVERYTHING, keys={})
"""The entity without keys: all events are of it."""


@dataclass(frozen=True)
class Numbers:
    """What to know of a column of numbers: values, mean, deviation, least and greatest.

    With ``scale`` (and of integers and decimals) mean and deviation come from exact sums of the
    values rounded to so many decimals; of floats without it from sums around ``center``, a
    number near the mean. ``edges`` (``linear_edges``, ``log_edges``) add a counter for each bin:
    quantiles, PSI and KS come from them.
    """

    column: str
    scale: int | None = None
    center: float = 0.0
    edges: Sequence[float] | None = None

    def aggregates(self) -> list[Aggregate]:
        """The aggregates that keep it."""
        kept: list[Aggregate] = [
            Count(self.column),
            StdDev(self.column, scale=self.scale, center=self.center),
            Min(self.column),
            Max(self.column),
        ]
        return kept if self.edges is None else [*kept, Histogram(self.column, edges=self.edges)]


@dataclass(frozen=True)
class Categories:
    """What to know of a column of categories: how often each of ``values`` came, and all others.

    The values are texts, whole numbers or truth values, 200 at most.
    """

    column: str
    values: Sequence[str | int | bool]

    def aggregates(self) -> list[Aggregate]:
        """The aggregates that keep it."""
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
    """The feature view that keeps statistics of these columns over all events of ``source``.

    ``columns`` name columns of the source or of ``derive``; ``where`` says which events count.
    Ranges of time that begin and end with a ``tile`` are read from tiles alone, others need the
    raw events at their ends.

    >>> from paimon_features.schema import Float64, Int64, String
    >>> schema = {"t": Int64, "amount": Float64, "country": String}
    >>> shop = EventSource("shop", schema=schema, event_time="t")
    >>> kept = [Numbers("amount", scale=2), Categories("country", ["FR", "DE"])]
    >>> view = statistics_view("shop_statistics", shop, kept)
    >>> [feature.name for feature in view.compiled.features][:3]
    ['count_amount', 'stddev_amount', 'min_amount']

    Raises
    ------
    DefinitionError
        As ``FeatureView`` does, and for a column that is named twice, or for none.
    """
    named = [column.column for column in columns]
    twice = next((column for column in named if named.count(column) > 1), None)
    if twice is not None or not named:
        said = "names no column" if twice is None else f"names the column {twice!r} twice"
        raise DefinitionError(f"statistics view {name!r} {said}")
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
    """A name for all other categories that is none of them."""
    name = "other"
    while name in values:
        name += "_"
    return name
