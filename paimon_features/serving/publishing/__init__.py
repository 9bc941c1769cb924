"""Fresh features as messages to Kafka: one for each entity whose tiles have changed."""

from __future__ import annotations

from paimon_features.serving.publishing.kafka_sink import KafkaSink
from paimon_features.serving.publishing.publisher import (
    FeatureMessage,
    FeaturePublisher,
    PublishProgress,
    Sink,
)

__all__ = ["FeatureMessage", "FeaturePublisher", "KafkaSink", "PublishProgress", "Sink"]
