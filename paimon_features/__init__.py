"""Features from the lake: one definition, the same values online and in training sets.

>>> import paimon_features as pf
>>> customer = pf.Entity("customer", keys={"customer_id": pf.Int64})

The public names are imported when they are first used, so that importing the package is quick
and a serving host never loads what only a training host needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paimon_features import errors as errors
    from paimon_features.aggregates import (
        Count,
        DecayedCount,
        DecayedMean,
        DecayedSum,
        Last,
        Max,
        Mean,
        Min,
        StdDev,
        Sum,
        Variance,
    )
    from paimon_features.definitions import (
        Entity,
        EventSource,
        FeatureService,
        FeatureView,
        FeedbackSource,
        Interaction,
        RequestSource,
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
        String,
        Timestamp,
    )

__version__ = "0.1.0"

_HOMES = {
    "aggregates": (
        "Count",
        "DecayedCount",
        "DecayedMean",
        "DecayedSum",
        "Last",
        "Max",
        "Mean",
        "Min",
        "StdDev",
        "Sum",
        "Variance",
    ),
    "definitions": (
        "Entity",
        "EventSource",
        "FeatureService",
        "FeatureView",
        "FeedbackSource",
        "Interaction",
        "RequestSource",
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
        "String",
        "Timestamp",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Bool",
    "Bytes",
    "Count",
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
    "Float32",
    "Float64",
    "Int32",
    "Int64",
    "Interaction",
    "Last",
    "List",
    "Max",
    "Mean",
    "Min",
    "PaimonFeaturesError",
    "Project",
    "RequestSource",
    "StdDev",
    "String",
    "Sum",
    "Timestamp",
    "Variance",
    "errors",
]


def __getattr__(name: str) -> Any:
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
