"""Requirements in addition to Python: Java, the Flink jars, a server of Redis, a broker of Kafka.

Each one is located or downloaded; if neither is possible, a ``SetupError`` states the remedy.
Nothing here imports Flink, Paimon or Redis, so it runs on every host.
"""

from __future__ import annotations

from paimon_features.setup.jars import class_path, fetch_jars
from paimon_features.setup.java import find_java_home
from paimon_features.setup.kafka_server import KafkaServer
from paimon_features.setup.redis_server import RedisServer, find_redis_server

__all__ = [
    "KafkaServer",
    "RedisServer",
    "class_path",
    "fetch_jars",
    "find_java_home",
    "find_redis_server",
]
