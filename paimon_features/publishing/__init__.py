"""Fresh features as messages to Kafka: one for each entity whose tiles have changed."""

from __future__ import annotations

from paimon_features.publishing.kafka_sink import KafkaSink
from paimon_features.publishing.publisher import (
    FeatureMessage,
    FeaturePublisher,
    PublishProgress,
    Sink,
)

__all__ = ["FeatureMessage", "FeaturePublisher", "KafkaSink", "PublishProgress", "Sink"]
