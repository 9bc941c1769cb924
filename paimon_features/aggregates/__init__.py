"""Aggregates over windows: partials per event, merged by the lake, finished at read."""

from paimon_features.aggregates.base import (
    EVENT_TIME,
    EVENT_TIME_MAX,
    HIDDEN_PARTIALS,
    ROWS,
    TILE_END,
    Aggregate,
    Finished,
    Guard,
    Merge,
    Partial,
)
from paimon_features.aggregates.basic import Count, Max, Mean, Min, Sum
from paimon_features.aggregates.decayed import DecayedCount, DecayedMean, DecayedSum
from paimon_features.aggregates.moments import StdDev, Variance
from paimon_features.aggregates.ordered import Last

__all__ = [
    "EVENT_TIME",
    "EVENT_TIME_MAX",
    "HIDDEN_PARTIALS",
    "ROWS",
    "TILE_END",
    "Aggregate",
    "Count",
    "DecayedCount",
    "DecayedMean",
    "DecayedSum",
    "Finished",
    "Guard",
    "Last",
    "Max",
    "Mean",
    "Merge",
    "Min",
    "Partial",
    "StdDev",
    "Sum",
    "Variance",
]
