"""The public names of the package; see ``paimon_features.core._lazy``."""

from paimon_features.core.feature_cache import FeatureCache as FeatureCache
from paimon_features.transformers.in_memory.base import (
    OnlineFeatureComputer as OnlineFeatureComputer,
)
from paimon_features.transformers.in_memory.decay import (
    TimeDecayFeatureBuilder as TimeDecayFeatureBuilder,
)
from paimon_features.transformers.in_memory.interaction import (
    InteractionFeatureBuilder as InteractionFeatureBuilder,
)
from paimon_features.transformers.in_memory.sliding import (
    SlidingWindowAggregator as SlidingWindowAggregator,
)
