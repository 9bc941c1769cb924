"""Aggregates over windows: partials of each event, merged to tiles, finished at read time."""

from paimon_features.definitions.aggregates.base import (
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
    Reading,
)
from paimon_features.definitions.aggregates.basic import Count, Max, Mean, Min, Sum
from paimon_features.definitions.aggregates.categories import CountBy, SumBy, TopCategories
from paimon_features.definitions.aggregates.decayed import DecayedCount, DecayedMean, DecayedSum
from paimon_features.definitions.aggregates.distinct import ApproxCountDistinct
from paimon_features.definitions.aggregates.histogram import (
    Histogram,
    Quantile,
    linear_edges,
    log_edges,
)
from paimon_features.definitions.aggregates.moments import StdDev, Variance
from paimon_features.definitions.aggregates.ordered import BottomK, First, FirstN, Last, LastN, TopK
from paimon_features.definitions.aggregates.rates import Rate, TimeSinceFirst, TimeSinceLast
from paimon_features.definitions.aggregates.shape import Kurtosis, Skewness
from paimon_features.definitions.aggregates.truth import All, Any
from paimon_features.definitions.aggregates.vectors import VectorMean, VectorSum

__all__ = [
    "EVENT_TIME",
    "EVENT_TIME_MAX",
    "HIDDEN_PARTIALS",
    "ROWS",
    "TILE_END",
    "Aggregate",
    "All",
    "Any",
    "ApproxCountDistinct",
    "BottomK",
    "Count",
    "CountBy",
    "DecayedCount",
    "DecayedMean",
    "DecayedSum",
    "Finished",
    "First",
    "FirstN",
    "Guard",
    "Histogram",
    "Kurtosis",
    "Last",
    "LastN",
    "Max",
    "Mean",
    "Merge",
    "Min",
    "Partial",
    "Quantile",
    "Rate",
    "Reading",
    "Skewness",
    "StdDev",
    "Sum",
    "SumBy",
    "TimeSinceFirst",
    "TimeSinceLast",
    "TopCategories",
    "TopK",
    "Variance",
    "VectorMean",
    "VectorSum",
    "linear_edges",
    "log_edges",
]
