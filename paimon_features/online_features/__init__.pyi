"""The public names of the package; see ``paimon_features._lazy``."""

from paimon_features.online_features.base import OnlineFeatureComputer as OnlineFeatureComputer
from paimon_features.online_features.cache import FeatureCache as FeatureCache
from paimon_features.online_features.decay import TimeDecayFeatureBuilder as TimeDecayFeatureBuilder
from paimon_features.online_features.interaction import (
    InteractionFeatureBuilder as InteractionFeatureBuilder,
)
from paimon_features.online_features.sliding import (
    SlidingWindowAggregator as SlidingWindowAggregator,
)
