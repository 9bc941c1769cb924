"""Whether a topic can be read, before a job is started: a job would retry for ever.

And whether messages were deleted since the last run, which a job would skip without a word.
"""

from __future__ import annotations

from typing import Any

from paimon_features.errors import JobError
from paimon_features.flink.environment import flink_errors
from paimon_features.flink.sql.kafka import KafkaTopic
from paimon_features.kafka_settings import NEW_TOPIC_S
from paimon_features.waiting import wait_until

TIMEOUT_MS = 15_000


def check_topic(topic: KafkaTopic, accept_loss: bool) -> None:
    """Connect to the brokers as the job will, from the JVM of this process.

    Raises
    ------
    JobError
        If the brokers are not reached, refuse the login, or have no such topic; and unless
        ``accept_loss``, if messages behind the offsets of the group were deleted.
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
    with flink_errors(f"connecting to the brokers {topic.servers} of topic {topic.topic!r}"):
        admin = clients.AdminClient.create(properties)
        try:
            names: set[str] = set()

            def known() -> bool:
                names.update(admin.listTopics().names().get())
                return topic.topic in names

            if not wait_until(known, NEW_TOPIC_S):
                raise JobError(
                    f"the brokers {topic.servers} have no topic {topic.topic!r} that "
                    f"this login may read; it sees: {_shown(names)}"
                )
            if not accept_loss and (lost := _deleted(jvm, clients, admin, topic)):
                raise JobError(
                    f"topic {topic.topic!r}: messages were deleted (by its retention, say) before "
                    f"group {topic.group!r} had read them: {'; '.join(lost)}. --accept-loss "
                    "continues with what is left"
                )
        finally:
            admin.close(jvm.java.time.Duration.ofSeconds(1))


def _deleted(jvm: Any, clients: Any, admin: Any, topic: KafkaTopic) -> list[str]:
    """The ranges between the group's offsets, which checkpoints move, and what is still there."""
    found = admin.listConsumerGroupOffsets(topic.group).partitionsToOffsetAndMetadata().get()
    committed = {p: found[p].offset() for p in found if p.topic() == topic.topic}
    wanted = jvm.java.util.HashMap()
    for partition in committed:
        wanted.put(partition, clients.OffsetSpec.earliest())
    first = admin.listOffsets(wanted).all().get()
    return sorted(
        f"partition {partition.partition()}, offsets {offset} to {first[partition].offset() - 1}"
        for partition, offset in committed.items()
        if first[partition].offset() > offset
    )


def _shown(names: set[str], most: int = 20) -> str:
    listed = ", ".join(sorted(names)[:most]) or "none"
    return listed + (f" and {len(names) - most} more" if len(names) > most else "")
