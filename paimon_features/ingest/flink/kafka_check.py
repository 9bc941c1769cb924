"""Whether a topic can be read, before a job is started: a job would retry for ever.

And whether it is the topic that was read until now, with the messages that were not read yet: a job
would skip them without a word.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from paimon_features.core.configuration.kafka_settings import NEW_TOPIC_S
from paimon_features.core.errors import JobError, unknown_name
from paimon_features.core.process.waiting import wait_until
from paimon_features.flink.checkpoints import Checkpoint
from paimon_features.flink.environment import flink_errors
from paimon_features.ingest.flink.checkpoint_offsets import checkpoint_offsets
from paimon_features.ingest.flink.kafka_sql import COMMITTED, KafkaTopic

TIMEOUT_MS = 15_000
NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""What brokers before Kafka 2.8 report as the id of a topic."""
_ANEW = "--restart --start earliest reads it from its beginning"

_log = logging.getLogger(__name__)


def check_topic(
    topic: KafkaTopic,
    checkpoint: Checkpoint | None,
    known_id: str | None,
    *,
    accept_loss: bool,
    must_reach: bool = True,
) -> str | None:
    """Connect to the brokers as the job will, from the JVM of this process; return the topic's id.

    The job continues at the offsets in ``checkpoint``, without one at those of the group.
    ``known_id`` is the id of the topic at the last start. None if the brokers know no ids, or are
    not reached from this host, which is a warning unless ``must_reach``.

    Raises
    ------
    JobError
        If the brokers are not reached, refuse the login, or have no such topic; if it is another
        topic of the same name; and unless ``accept_loss``, if messages were deleted before they
        were read.
    """
    from pyflink.java_gateway import get_gateway

    jvm = get_gateway().jvm
    properties = jvm.java.util.Properties()
    for key, value in {
        **topic.properties,
        "bootstrap.servers": topic.servers,
        "client.id": "paimon-features-check",
        "request.timeout.ms": str(TIMEOUT_MS),
        "default.api.timeout.ms": str(TIMEOUT_MS),
    }.items():
        properties.setProperty(key, value)
    clients = jvm.org.apache.flink.kafka.shaded.org.apache.kafka.clients.admin
    with flink_errors(_connecting(topic)):
        admin = clients.AdminClient.create(properties)
        try:
            if not _reached(admin, topic, must_reach):
                return None
            found_id = _topic_id(jvm, admin, topic.topic)
            if checkpoint is not None:
                _check_same_topic(topic, known_id, found_id)
                offsets = checkpoint_offsets(checkpoint, topic.topic)
            else:
                offsets = _group_offsets(admin, topic) if topic.start == COMMITTED else {}
            log = _Log(jvm, clients, admin, topic.topic)
            _check_end(log, topic, offsets, resumes=checkpoint is not None)
            if not accept_loss:
                _check_deleted(log, topic, offsets)
            return found_id
        finally:
            admin.close(jvm.java.time.Duration.ofSeconds(1))


def _connecting(topic: KafkaTopic) -> str:
    return f"connecting to the brokers {topic.servers} of topic {topic.topic!r}"


def _reached(admin: Any, topic: KafkaTopic, must_reach: bool) -> bool:
    """Return True if the brokers answer; JobError if they do, and have no such topic."""
    names: set[str] = set()

    def known() -> bool:
        names.update(admin.listTopics().names().get())
        return topic.topic in names

    try:
        with flink_errors(_connecting(topic)):
            exists = wait_until(known, NEW_TOPIC_S)
    except JobError as error:
        if must_reach:
            raise
        _log.warning(
            "the brokers %s are not reached from this host, only from the cluster perhaps: it is "
            "not checked whether messages of topic %r were deleted before they were read, nor "
            "whether it was created again (%s)",
            topic.servers,
            topic.topic,
            error,
        )
        return False
    if not exists:
        message = unknown_name("topic", topic.topic, names)
        raise JobError(f"the brokers {topic.servers}, as this login sees them: {message}")
    return True


def _topic_id(jvm: Any, admin: Any, name: str) -> str | None:
    described = admin.describeTopics(jvm.java.util.Collections.singletonList(name))
    topic_id = str(described.allTopicNames().get().get(name).topicId().toString())
    return None if topic_id == NO_ID else topic_id


def _check_same_topic(topic: KafkaTopic, known_id: str | None, found_id: str | None) -> None:
    if known_id is not None and found_id is not None and known_id != found_id:
        raise JobError(
            f"topic {topic.topic!r} was deleted and created again since the last run: its id is "
            f"{found_id}, it was {known_id}. The offsets of the earlier topic would skip messages "
            f"of this one; {_ANEW}"
        )


class _Log:
    """First and next offsets of the partitions of a topic."""

    def __init__(self, jvm: Any, clients: Any, admin: Any, topic: str) -> None:
        self._jvm, self._clients, self._admin, self._topic = jvm, clients, admin, topic

    def partitions(self) -> set[int]:
        """Return the partitions that exist."""
        names = self._jvm.java.util.Collections.singletonList(self._topic)
        described = self._admin.describeTopics(names).allTopicNames().get().get(self._topic)
        return {int(partition.partition()) for partition in described.partitions()}

    def first(self, partitions: set[int]) -> dict[int, int]:
        """Return the offset of the oldest message that is left."""
        return self._offsets(partitions, self._clients.OffsetSpec.earliest())

    def end(self, partitions: set[int]) -> dict[int, int]:
        """Return the offset of the next message that is written."""
        return self._offsets(partitions, self._clients.OffsetSpec.latest())

    def _offsets(self, partitions: set[int], spec: Any) -> dict[int, int]:
        common = self._jvm.org.apache.flink.kafka.shaded.org.apache.kafka.common
        wanted = self._jvm.java.util.HashMap()
        for partition in partitions:
            wanted.put(common.TopicPartition(self._topic, partition), spec)
        offsets = self._admin.listOffsets(wanted).all().get()
        return {int(place.partition()): int(offsets[place].offset()) for place in offsets}


def _check_end(log: _Log, topic: KafkaTopic, offsets: Mapping[int, int], resumes: bool) -> None:
    """Raise JobError if a job that resumes would continue behind the end of the topic."""
    if not offsets or not resumes:
        return  # a first run begins at an offset that exists, whatever the group has
    end = log.end(log.partitions() & offsets.keys())
    another = sorted(
        f"partition {partition} ends at offset {end.get(partition, 0)}, before {offset}"
        for partition, offset in offsets.items()
        if end.get(partition, 0) < offset
    )
    if another:
        raise JobError(
            f"topic {topic.topic!r} is shorter than what was read of it: {'; '.join(another)}. It "
            f"was created again, or lost messages; {_ANEW}"
        )


def _check_deleted(log: _Log, topic: KafkaTopic, offsets: Mapping[int, int]) -> None:
    """Raise JobError if messages at the offsets where the job continues were deleted."""
    first = log.first(log.partitions() & offsets.keys()) if offsets else {}
    lost = sorted(
        f"partition {partition}, offsets {offsets[partition]} to {offset - 1}"
        for partition, offset in first.items()
        if offset > offsets[partition]
    )
    if lost:
        raise JobError(
            f"topic {topic.topic!r}: messages were deleted (by its retention, say) before "
            f"{topic.group!r} had read them: {'; '.join(lost)}. --accept-loss "
            "continues with what is left"
        )


def _group_offsets(admin: Any, topic: KafkaTopic) -> dict[int, int]:
    """Return what the group has committed, where a first run begins."""
    committed = admin.listConsumerGroupOffsets(topic.group).partitionsToOffsetAndMetadata().get()
    return {
        int(place.partition()): int(committed[place].offset())
        for place in committed
        if place.topic() == topic.topic
    }
