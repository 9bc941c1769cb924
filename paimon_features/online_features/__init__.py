"""Features of values at hand, without a project: windows, decay, interactions, a cache.

For a process that holds the values itself, such as a request handler or a notebook. The
arithmetic is that of the expression language, so that a ratio here is the ratio of an
``Interaction``, online and in a training set.

The names are imported when they are first used: ``FeatureCache`` needs no NumPy.

>>> from paimon_features.online_features import InteractionFeatureBuilder
>>> InteractionFeatureBuilder().build({"spent": 6.0, "limit": 4.0}, [("spent", "limit", "ratio")])
{'spent_ratio_limit': 1.5}
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paimon_features.online_features.base import OnlineFeatureComputer
    from paimon_features.online_features.cache import FeatureCache
    from paimon_features.online_features.decay import TimeDecayFeatureBuilder
    from paimon_features.online_features.interaction import InteractionFeatureBuilder
    from paimon_features.online_features.sliding import SlidingWindowAggregator

_HOMES = {
    "FeatureCache": "cache",
    "InteractionFeatureBuilder": "interaction",
    "OnlineFeatureComputer": "base",
    "SlidingWindowAggregator": "sliding",
    "TimeDecayFeatureBuilder": "decay",
}

__all__ = [
    "FeatureCache",
    "InteractionFeatureBuilder",
    "OnlineFeatureComputer",
    "SlidingWindowAggregator",
    "TimeDecayFeatureBuilder",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
