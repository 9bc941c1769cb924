"""Features of values in memory, without a project: windows, decay, interactions, a cache.

For a process that already has the values, such as a request handler or a notebook. The
arithmetic is that of the expression language, so that a ratio here is the ratio of an
``Interaction``, online and in a training set.

The names are imported when they are first used: ``FeatureCache`` needs no NumPy.

>>> from paimon_features.online_features import InteractionFeatureBuilder
>>> InteractionFeatureBuilder().build({"spent": 6.0, "limit": 4.0}, [("spent", "limit", "ratio")])
{'spent_ratio_limit': 1.5}
"""

from paimon_features.core._lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, "online_features.pyi")
