"""Topics of the tests' broker: created, filled, and read to their ends."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers.kafka_server import KafkaServer, SecureListener
from tests.waiting import await_true

TIMEOUT_S = 60.0
USER, PASSWORD = "ingest", 'half "quoted" \\ back$slashed ${env:HOME} #=: é'
OTHER_USER, OTHER_PASSWORD = "plain", "a-second-password-of-the-tests"
_names = itertools.count()


@dataclass(frozen=True)
class Message:
    """A message as it is sent."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int = 0
    partition: int = -1


class Topic:
    """A topic of its own for a test."""

    def __init__(
        self,
        broker: KafkaServer,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        name: str | None = None,
    ) -> None:
        from confluent_kafka import KafkaError, KafkaException, Producer
        from confluent_kafka.admin import AdminClient, NewTopic

        self.broker = broker
        self.name = name or f"topic-{next(_names)}-{secrets.token_hex(3)}"
        self.partitions = partitions
        self._admin = AdminClient({"bootstrap.servers": broker.address})
        self._producer = Producer(
            {
                "bootstrap.servers": broker.address,
                # what is sent while the broker is down arrives once, when it is back
                "enable.idempotence": True,
                "message.max.bytes": 20_000_000,
            }
        )
        # messages with old timestamps are not to expire
        settings = {"retention.ms": "-1", **(config or {})}
        topic = NewTopic(self.name, partitions, 1, config=settings)

        def create() -> bool:
            try:
                self._admin.create_topics([topic])[self.name].result(TIMEOUT_S)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.INVALID_REPLICATION_FACTOR:
                    raise
                return False  # a broker that was paused counts as gone until its next heartbeat
            return True

        await_true(create)
        await_true(lambda: len(self._known().partitions) == partitions)

    def add_partitions(self, total: int) -> None:
        """Extend the topic to ``total`` partitions."""
        from confluent_kafka.admin import NewPartitions

        self._admin.create_partitions([NewPartitions(self.name, total)])[self.name].result(
            TIMEOUT_S
        )
        self.partitions = total
        await_true(lambda: len(self._known().partitions) == total)

    def _known(self) -> Any:
        return self._producer.list_topics(self.name, TIMEOUT_S).topics[self.name]

    def end(self, partition: int) -> int:
        """The offset behind the last message."""
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import OffsetSpec

        place = TopicPartition(self.name, partition)
        (found,) = self._admin.list_offsets({place: OffsetSpec.latest()}).values()
        return int(found.result(TIMEOUT_S).offset)

    def committed(self, group: str, partition: int) -> int:
        """The offset that a group has committed, negative if there is none."""
        from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

        asked = ConsumerGroupTopicPartitions(group, [TopicPartition(self.name, partition)])
        (found,) = self._admin.list_consumer_group_offsets([asked]).values()
        return int(found.result(TIMEOUT_S).topic_partitions[0].offset)

    def delete(self) -> None:
        """Delete the topic."""
        self._admin.delete_topics([self.name])[self.name].result(TIMEOUT_S)
        await_true(lambda: self.name not in self._admin.list_topics(timeout=TIMEOUT_S).topics)

    def delete_group(self, group: str) -> None:
        """Delete a group and its offsets, if there are any."""
        from confluent_kafka import KafkaError, KafkaException

        for done in self._admin.delete_consumer_groups([group]).values():
            try:
                done.result(TIMEOUT_S)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:
                    raise

    def delete_before(self, partition: int, offset: int) -> None:
        """Delete messages, as retention does."""
        from confluent_kafka import TopicPartition

        place = TopicPartition(self.name, partition, offset)
        for done in self._admin.delete_records([place]).values():
            done.result(TIMEOUT_S)

    def send(self, messages: Iterable[Message | bytes], flush: bool = True) -> None:
        """Send messages; with ``flush`` they are in the topic at return."""
        for one in messages:
            message = one if isinstance(one, Message) else Message(one)
            self._producer.produce(
                self.name,
                value=message.value,
                key=message.key,
                headers=list(message.headers),
                partition=message.partition,
                timestamp=message.timestamp_ms,
                on_delivery=_must_arrive,
            )
            self._producer.poll(0)
        if flush:
            self.flush()

    def flush(self) -> None:
        """Wait until every message has been written."""
        assert self._producer.flush(TIMEOUT_S) == 0

    def send_transaction(self, messages: Iterable[bytes], commit: bool) -> None:
        """Send messages in one transaction, which is committed or aborted."""
        from confluent_kafka import Producer

        settings = {"bootstrap.servers": self.broker.address, "transactional.id": self.name}
        producer = Producer(settings)
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        for value in messages:
            producer.produce(self.name, value=value)
        assert producer.flush(TIMEOUT_S) == 0
        if commit:
            producer.commit_transaction(TIMEOUT_S)
        else:
            producer.abort_transaction(TIMEOUT_S)

    def read(self) -> list[tuple[bytes | None, bytes | None]]:
        """Key and value of every message in the topic now, by partition and offset."""
        from confluent_kafka import Consumer, TopicPartition

        settings = {
            "bootstrap.servers": self.broker.address,
            "group.id": f"reader-{self.name}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
        consumer = Consumer(settings)
        found: list[tuple[int, int, bytes | None, bytes | None]] = []
        try:
            consumer.assign([TopicPartition(self.name, p, 0) for p in range(self.partitions)])
            ends = 0
            while ends < self.partitions:
                message = consumer.poll(TIMEOUT_S)
                assert message is not None, f"{self.name}: no answer"
                if message.error() is not None:
                    ends += 1
                    continue
                place = (message.partition(), message.offset())
                found.append((*place, message.key(), message.value()))
        finally:
            consumer.close()
        return [(key, value) for _, _, key, value in sorted(found, key=lambda row: row[:2])]


def _must_arrive(error: object, message: object) -> None:
    assert error is None, error


def secure_listener(folder: Path) -> SecureListener:
    """A certificate of 127.0.0.1 in ``folder``, which is its own authority, and two users."""
    import datetime as dt
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "kafka of the tests")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=30))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    private = key.private_bytes(
        encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = certificate.public_bytes(encoding)
    (folder / "ca.pem").write_bytes(public)
    (folder / "client.key").write_bytes(private)
    (folder / "broker.pem").write_bytes(private + public)
    users = {USER: PASSWORD, OTHER_USER: OTHER_PASSWORD}
    return SecureListener(folder / "broker.pem", users, folder / "ca.pem")
