"""Features of values at hand, without a project: windows, decay, interactions, a cache.

For a process that holds the values itself, such as a request handler or a notebook. The
arithmetic is that of the expression language, so that a ratio here is the ratio of an
``Interaction``, online and in a training set.

>>> InteractionFeatureBuilder().build({"spent": 6.0, "limit": 4.0}, [("spent", "limit", "ratio")])
{'spent_ratio_limit': 1.5}
"""

from paimon_features.online_features.base import OnlineFeatureComputer
from paimon_features.online_features.cache import FeatureCache
from paimon_features.online_features.decay import TimeDecayFeatureBuilder
from paimon_features.online_features.interaction import InteractionFeatureBuilder
from paimon_features.online_features.sliding import SlidingWindowAggregator

__all__ = [
    "FeatureCache",
    "InteractionFeatureBuilder",
    "OnlineFeatureComputer",
    "SlidingWindowAggregator",
    "TimeDecayFeatureBuilder",
]
