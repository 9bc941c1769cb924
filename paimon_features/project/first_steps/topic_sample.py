"""Some messages of a topic, to look at; nothing is committed for a group."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from paimon_features.core.configuration.kafka_settings import (
    NEW_TOPIC_S,
    PASSWORD_VARIABLE,
    KafkaSettings,
)
from paimon_features.core.errors import ConfigurationError, MissingExtraError, unknown_name
from paimon_features.core.process.waiting import wait_until
from paimon_features.serving.publishing.kafka_sink import CLIENT_LOG, client_settings, topics

CONNECT_S = 10.0
"""Until brokers that do not answer are an error."""
CLOSED_S = 4.0
"""Until that is one for brokers that accept connections and close them without a word."""
POLL_S = 0.5
QUIET_S = 10.0
"""Without a message for so long the sample ends with what it has."""
LARGEST_MESSAGE = 8 << 20
MOST_BYTES = 64 << 20
_FINAL = {-169, -181, 58, 31, 33}
"""Codes of librdkafka that waiting does not change: login refused, TLS, mechanism."""
_NO_RIGHT = {29, 30}
_REGISTRY_HEADER = 5
"""Bytes that serializers of a schema registry put before the JSON: zero, number of the schema."""


@dataclass(slots=True)
class TopicSample:
    """JSON objects of a topic, each on one line, and how many messages were something else."""

    lines: list[bytes]
    unreadable: int = 0
    empty: int = 0
    first_unreadable: bytes = b""


def sample_topic(settings: KafkaSettings, brokers: str, topic: str, messages: int) -> TopicSample:
    """Return the newest messages of each partition that are JSON objects, together about
    ``messages``.

    At most 64 MiB are read. Messages of aborted transactions are none.

    Raises
    ------
    MissingExtraError
        If confluent-kafka is not installed.
    ConfigurationError
        If the brokers are not reached or refuse the login, or there is no such topic, no message
        in it, or none that is a JSON object; or if they are envelopes of Debezium.
    """
    try:
        from confluent_kafka import Consumer, KafkaException
    except ImportError as error:
        raise MissingExtraError.of("confluent-kafka", "kafka", "reading a topic") from error
    failures: list[Any] = []
    consumer = Consumer(
        {
            **client_settings(settings),
            "bootstrap.servers": brokers,
            "group.id": "paimon-features-init",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "socket.connection.setup.timeout.ms": 3_000,
            # that all are down says less than why one is
            "error_cb": lambda error: None if error.code() == -187 else failures.append(error),
        },
        # else librdkafka writes every attempt to standard error
        logger=CLIENT_LOG,
    )
    where = f"topic {topic!r} of {brokers}"
    try:
        starts = _starts(consumer, settings, brokers, topic, messages, failures)
        if not starts:
            raise ConfigurationError(
                f"{where} has no messages yet; send some first, or write the project from a file "
                "of such events (--from events.jsonl)"
            )
        sample = TopicSample([])
        for value in _values(consumer, starts, messages):
            _add(sample, value)
    except KafkaException as error:
        raise ConfigurationError(f"{where}: {error.args[0].str()}") from error
    finally:
        consumer.close()
    _check(sample, where)
    return sample


def _starts(
    consumer: Any,
    settings: KafkaSettings,
    brokers: str,
    topic: str,
    messages: int,
    failures: list[Any],
) -> list[Any]:
    """Return where to begin in each partition that has messages."""
    from confluent_kafka import TopicPartition

    topics: dict[str, Any] = {}

    def is_known() -> bool:
        nonlocal topics
        topics = _topics(consumer, settings, brokers, failures)
        return topic in topics and topics[topic].error is None and bool(topics[topic].partitions)

    if not wait_until(is_known, NEW_TOPIC_S):
        visible = sorted(name for name in topics if not name.startswith("__"))
        raise ConfigurationError(
            f"{unknown_name('topic', topic, visible, brokers)} (available to this login)"
        )
    partitions = topics[topic].partitions
    starts = []
    share = max(1, messages // len(partitions))
    for number in partitions:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=CONNECT_S)
        if high > low:
            starts.append(TopicPartition(topic, number, max(low, high - share)))
    return starts


def _topics(
    consumer: Any, settings: KafkaSettings, brokers: str, failures: list[Any]
) -> dict[str, Any]:
    """Return the topics that this login sees, by their names."""
    from confluent_kafka import KafkaException

    def is_final(cause: Any, waited_s: float) -> bool:
        return cause.code() in _FINAL or waited_s > (CONNECT_S if failures else CLOSED_S)

    try:
        return topics(consumer, failures, is_final)
    except KafkaException as error:
        raise _unreached(settings, brokers, failures, error.args[0]) from None


def _unreached(
    settings: KafkaSettings, brokers: str, failures: list[Any], cause: Any
) -> ConfigurationError:
    text = next((f.str() for f in reversed(failures) if f.code() in _FINAL), cause.str())
    # a broker that expects TLS or a login closes the connection, which librdkafka does not report
    closed = not failures or any("isconnected" in f.str() or "SSL" in f.str() for f in failures)
    if not failures:
        text = "the broker closed the connection"
    if settings.user is not None and any(f.code() == -169 for f in (*failures, cause)):
        remedy = (
            f"check --kafka user={settings.user}, mechanism={settings.mechanism} and the password "
            f"in {PASSWORD_VARIABLE}"
        )
    elif closed:
        remedy = (
            f"the connection was made by {settings.protocol}; a broker with TLS or logins needs "
            "for example --kafka tls=true --kafka tls_ca=ca.pem --kafka user=NAME, with the "
            f"password in {PASSWORD_VARIABLE}"
        )
    else:
        remedy = "expected kafka://HOST:PORT/TOPIC of a broker that this machine sees"
    return ConfigurationError(
        f"{brokers} was not reached: {text.partition(' (after ')[0]}; {remedy}"
    )


def _values(consumer: Any, starts: list[Any], messages: int) -> Iterator[bytes | None]:
    """Yield what the messages are, up to the present end of each partition."""
    consumer.assign(starts)
    left = {place.partition for place in starts}
    count = size = 0
    quiet_s = 0.0
    while left and count < messages and size < MOST_BYTES:
        message = consumer.poll(POLL_S)
        if message is None:
            # not by the clock: while this process was suspended nobody could have brought one
            quiet_s += POLL_S
            if quiet_s > QUIET_S:
                return
            continue
        quiet_s = 0.0
        if message.error() is not None:  # the end of a partition; others are repeated
            if message.error().code() == -191:
                left.discard(message.partition())
            elif message.error().code() in _NO_RIGHT:
                raise ConfigurationError(
                    f"topic {message.topic()!r}: {message.error().str()}; give this login the "
                    "right to read the topic with the group 'paimon-features-init'"
                )
            continue
        count += 1
        value = message.value()
        size += len(value or b"")
        yield value


def _add(sample: TopicSample, value: bytes | None) -> None:
    if value is None:
        sample.empty += 1
        return
    text = value
    if value[:1] == b"\0" and value[_REGISTRY_HEADER:].lstrip()[:1] == b"{":
        text = value[_REGISTRY_HEADER:]
    try:
        message = json.loads(text) if len(text) <= LARGEST_MESSAGE else None
    except (ValueError, RecursionError):
        message = None
    if isinstance(message, dict):
        sample.lines.append(json.dumps(message).encode())
    else:
        sample.unreadable += 1
        sample.first_unreadable = sample.first_unreadable or value[:40]


def _check(sample: TopicSample, where: str) -> None:
    if not sample.lines:
        if not sample.unreadable:
            raise ConfigurationError(
                f"{where}: its {sample.empty:,} newest messages have no value (tombstones); "
                "expected JSON objects"
            )
        first = sample.first_unreadable
        hint = (
            "; a first byte of 0 is that of a schema registry's Avro or Protobuf: convert the "
            "topic to JSON" if first[:1] == b"\0" else ""
        )  # fmt: skip
        raise ConfigurationError(
            f"{where}: none of {sample.unreadable:,} messages is a JSON object; the first begins "
            f"with {first!r}{hint}"
        )
    document = json.loads(sample.lines[0])
    inner = document.get("payload")
    envelope = inner if isinstance(inner, dict) else document
    if "op" in envelope and ("after" in envelope or "before" in envelope):
        raise ConfigurationError(
            f"{where}: its messages are changes (envelopes of Debezium), not events. Write the "
            "source by hand from the fields of 'after', with a retraction column, and ingest "
            "with --format debezium-json (docs/how-to/data/kafka.md, Debezium)"
        )
