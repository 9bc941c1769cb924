"""Features from the lake: one definition, the same values online and in training sets.

>>> import paimon_features as pf
>>> customer = pf.Entity("customer", keys={"customer_id": pf.Int64})

The public names are imported when they are first used, so that importing the package is quick
and a serving host never loads what only a training host needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paimon_features import errors as errors
    from paimon_features.aggregates import (
        All,
        Any,
        ApproxCountDistinct,
        BottomK,
        Count,
        CountBy,
        DecayedCount,
        DecayedMean,
        DecayedSum,
        First,
        FirstN,
        Histogram,
        Kurtosis,
        Last,
        LastN,
        Max,
        Mean,
        Min,
        Quantile,
        Rate,
        Skewness,
        StdDev,
        Sum,
        SumBy,
        TimeSinceFirst,
        TimeSinceLast,
        TopCategories,
        TopK,
        Variance,
        VectorMean,
        VectorSum,
        linear_edges,
        log_edges,
    )
    from paimon_features.definitions import (
        Categories,
        Entity,
        EventSource,
        FeatureService,
        FeatureView,
        FeedbackSource,
        Fitted,
        Interaction,
        Numbers,
        RequestSource,
        SessionView,
        TableSource,
        TableView,
        Transformed,
        TumblingView,
        everything,
        statistics_view,
    )
    from paimon_features.errors import PaimonFeaturesError
    from paimon_features.project import Project
    from paimon_features.schema import (
        Bool,
        Bytes,
        Date,
        Decimal,
        Float32,
        Float64,
        Int32,
        Int64,
        List,
        Map,
        String,
        Timestamp,
    )

__version__ = "0.1.0"

_HOMES = {
    "aggregates": (
        "All",
        "Any",
        "ApproxCountDistinct",
        "BottomK",
        "Count",
        "CountBy",
        "DecayedCount",
        "DecayedMean",
        "DecayedSum",
        "First",
        "FirstN",
        "Histogram",
        "Kurtosis",
        "Last",
        "LastN",
        "Max",
        "Mean",
        "Min",
        "Quantile",
        "Rate",
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
    ),
    "definitions": (
        "Categories",
        "Entity",
        "EventSource",
        "FeatureService",
        "FeatureView",
        "FeedbackSource",
        "Fitted",
        "Interaction",
        "Numbers",
        "RequestSource",
        "SessionView",
        "TableSource",
        "TableView",
        "Transformed",
        "TumblingView",
        "everything",
        "statistics_view",
    ),
    "errors": ("PaimonFeaturesError",),
    "project": ("Project",),
    "schema": (
        "Bool",
        "Bytes",
        "Date",
        "Decimal",
        "Float32",
        "Float64",
        "Int32",
        "Int64",
        "List",
        "Map",
        "String",
        "Timestamp",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "All",
    "Any",
    "ApproxCountDistinct",
    "Bool",
    "BottomK",
    "Bytes",
    "Categories",
    "Count",
    "CountBy",
    "Date",
    "DecayedCount",
    "DecayedMean",
    "DecayedSum",
    "Decimal",
    "Entity",
    "EventSource",
    "FeatureService",
    "FeatureView",
    "FeedbackSource",
    "First",
    "FirstN",
    "Fitted",
    "Float32",
    "Float64",
    "Histogram",
    "Int32",
    "Int64",
    "Interaction",
    "Kurtosis",
    "Last",
    "LastN",
    "List",
    "Map",
    "Max",
    "Mean",
    "Min",
    "Numbers",
    "PaimonFeaturesError",
    "Project",
    "Quantile",
    "Rate",
    "RequestSource",
    "SessionView",
    "Skewness",
    "StdDev",
    "String",
    "Sum",
    "SumBy",
    "TableSource",
    "TableView",
    "TimeSinceFirst",
    "TimeSinceLast",
    "Timestamp",
    "TopCategories",
    "TopK",
    "Transformed",
    "TumblingView",
    "Variance",
    "VectorMean",
    "VectorSum",
    "errors",
    "everything",
    "linear_edges",
    "log_edges",
    "statistics_view",
]


def __getattr__(name: str) -> object:
    if name == "errors":
        return importlib.import_module("paimon_features.errors")
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'paimon_features' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"paimon_features.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
