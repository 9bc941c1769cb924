"""The definitions that users write: entities, sources, views, interactions, services."""

from paimon_features.definitions.collection import Definitions, RequestItem
from paimon_features.definitions.compiled import CompiledFeature, CompiledView, SkipRule
from paimon_features.definitions.derived import (
    CompiledDerived,
    DerivedFeature,
    DerivedView,
    SessionView,
    TumblingView,
)
from paimon_features.definitions.entity import Entity
from paimon_features.definitions.evaluation import evaluate
from paimon_features.definitions.feature_view import FeatureView
from paimon_features.definitions.interaction import CompiledInteraction, Interaction
from paimon_features.definitions.loader import load_definitions
from paimon_features.definitions.reference import FeatureRef
from paimon_features.definitions.request import RequestSource
from paimon_features.definitions.selection import Output, Selection
from paimon_features.definitions.service import FeatureService
from paimon_features.definitions.source import EventSource, FeedbackSource
from paimon_features.definitions.statistics_view import (
    Categories,
    Numbers,
    everything,
    statistics_view,
)
from paimon_features.definitions.table_view import (
    CompiledTable,
    TableFeature,
    TableSource,
    TableView,
)
from paimon_features.definitions.transformed import CompiledTransformed, Fitted, Transformed

__all__ = [
    "Categories",
    "CompiledDerived",
    "CompiledFeature",
    "CompiledInteraction",
    "CompiledTable",
    "CompiledTransformed",
    "CompiledView",
    "Definitions",
    "DerivedFeature",
    "DerivedView",
    "Entity",
    "EventSource",
    "FeatureRef",
    "FeatureService",
    "FeatureView",
    "FeedbackSource",
    "Fitted",
    "Interaction",
    "Numbers",
    "Output",
    "RequestItem",
    "RequestSource",
    "Selection",
    "SessionView",
    "SkipRule",
    "TableFeature",
    "TableSource",
    "TableView",
    "Transformed",
    "TumblingView",
    "evaluate",
    "everything",
    "load_definitions",
    "statistics_view",
]
