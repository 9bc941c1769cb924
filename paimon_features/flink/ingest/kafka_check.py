"""Whether a topic can be read, before a job is started: a job would retry for ever."""

from __future__ import annotations

from paimon_features.errors import JobError
from paimon_features.flink.environment import flink_errors
from paimon_features.flink.sql.kafka import KafkaTopic

TIMEOUT_MS = 15_000


def check_topic(topic: KafkaTopic) -> None:
    """Connect to the brokers as the job will, from the JVM of this process.

    Raises
    ------
    JobError
        If the brokers are not reached, refuse the login, or have no such topic.
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
            names = set(admin.listTopics().names().get())
            if topic.topic not in names:
                raise JobError(
                    f"the brokers {topic.servers} have no topic {topic.topic!r} that "
                    f"this login may read; it sees: {_shown(names)}"
                )
        finally:
            admin.close(jvm.java.time.Duration.ofSeconds(1))


def _shown(names: set[str], most: int = 20) -> str:
    listed = ", ".join(sorted(names)[:most]) or "none"
    return listed + (f" and {len(names) - most} more" if len(names) > most else "")
