"""What a user writes down: entities, sources, feature views, services."""

from paimon_features.definitions.compiled import CompiledFeature, CompiledView, SkipRule
from paimon_features.definitions.entity import Entity
from paimon_features.definitions.feature_view import FeatureView
from paimon_features.definitions.loader import Definitions, load_definitions
from paimon_features.definitions.service import FeatureRef, FeatureService
from paimon_features.definitions.source import EventSource, FeedbackSource

__all__ = [
    "CompiledFeature",
    "CompiledView",
    "Definitions",
    "Entity",
    "EventSource",
    "FeatureRef",
    "FeatureService",
    "FeatureView",
    "FeedbackSource",
    "SkipRule",
    "load_definitions",
]
