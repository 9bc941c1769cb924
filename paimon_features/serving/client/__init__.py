"""The client of a feature server: ``FeatureClient``, and ``AsyncFeatureClient`` for asyncio.

It needs httpx (extra ``client``) and nothing else: no NumPy, no Arrow but for the bulk method.
"""

from paimon_features.serving.client.clients import AsyncFeatureClient, FeatureClient
from paimon_features.serving.client.replies import FeatureReply
from paimon_features.serving.replies.freshness import Freshness

__all__ = ["AsyncFeatureClient", "FeatureClient", "FeatureReply", "Freshness"]
