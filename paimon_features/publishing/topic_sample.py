"""Some messages of a topic, to look at; nothing is committed for a group."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from paimon_features.errors import ConfigurationError, MissingExtraError
from paimon_features.kafka_settings import KafkaSettings
from paimon_features.publishing.kafka_sink import client_settings

WAIT_S = 15.0
QUIET_S = 3.0


def sample_topic(brokers: str, topic: str, messages: int) -> Iterator[bytes]:
    """The newest messages of each partition, together about ``messages``.

    Raises
    ------
    MissingExtraError
        If confluent-kafka is not installed.
    ConfigurationError
        If the brokers are not reached, or there is no such topic, or nothing in it.
    """
    try:
        from confluent_kafka import Consumer, KafkaException, TopicPartition
    except ImportError as error:
        raise MissingExtraError.of("confluent-kafka", "kafka", "reading a topic") from error
    settings = client_settings(KafkaSettings.of({}, Path.cwd()))
    consumer = Consumer(
        {**settings, "bootstrap.servers": brokers, "group.id": "paimon-features-init",
         "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    )  # fmt: skip
    try:
        known = consumer.list_topics(topic, timeout=WAIT_S).topics[topic]
        if known.error is not None or not known.partitions:
            raise ConfigurationError(f"{brokers} has no topic {topic!r}")
        ends = {}
        starts = []
        share = max(1, messages // len(known.partitions))
        for partition in known.partitions:
            low, high = consumer.get_watermark_offsets(
                TopicPartition(topic, partition), timeout=WAIT_S
            )
            if high > low:
                ends[partition] = high
                starts.append(TopicPartition(topic, partition, max(low, high - share)))
        if not starts:
            raise ConfigurationError(f"topic {topic!r} of {brokers} has no messages yet")
        consumer.assign(starts)
        heard = time.monotonic()
        while ends and time.monotonic() - heard < QUIET_S + WAIT_S:
            message = consumer.poll(0.5)
            if message is None or message.error() is not None:
                continue
            heard = time.monotonic()
            if message.value() is not None:
                yield message.value()
            if message.offset() + 1 >= ends.get(message.partition(), 0):
                ends.pop(message.partition(), None)
    except KafkaException as error:
        raise ConfigurationError(
            f"{brokers} was not reached within {WAIT_S:.0f} s: {error.args[0].str()}; expected "
            "kafka://HOST:PORT/TOPIC of a broker that this machine sees"
        ) from error
    finally:
        consumer.close()
