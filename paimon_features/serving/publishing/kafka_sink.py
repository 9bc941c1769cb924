"""Messages to a Kafka topic; the only importer of confluent_kafka."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from paimon_features.core.configuration.kafka_settings import NEW_TOPIC_S, KafkaSettings
from paimon_features.core.errors import MissingExtraError, PublishError
from paimon_features.core.process.closeable import Closeable
from paimon_features.core.process.waiting import wait_until
from paimon_features.serving.publishing.publisher import FeatureMessage

TIMEOUT_S = 60.0
CONNECT_S = 15.0
_NEW = (3, 5)
"""Codes of brokers for a new topic: not known, or not who leads it."""
CLIENT_LOG = logging.getLogger(f"{__name__}.librdkafka")
"""Every attempt of librdkafka, for who configures logging: errors are ours to report."""
CLIENT_LOG.addHandler(logging.NullHandler())
_FINAL = (-169, -181)
"""Codes of librdkafka for a refused login and for TLS: they do not pass by themselves."""


class KafkaSink(Closeable):
    """A topic, written by an idempotent producer; a context manager.

    Messages with one key are in one partition, in the order in which they were sent.

    Raises
    ------
    MissingExtraError
        If confluent-kafka is not installed.
    PublishError
        If the brokers are not reached, refuse the login, or have no such topic.
    """

    def __init__(self, settings: KafkaSettings, brokers: str, topic: str) -> None:
        try:
            from confluent_kafka import Producer
        except ImportError as error:
            raise MissingExtraError.of("confluent-kafka", "kafka", "publishing features") from error
        self._where = f"topic {topic!r} of {brokers}"
        self._connection = {**client_settings(settings), "bootstrap.servers": brokers}
        self._topic = topic
        self._failures: list[Any] = []
        self._producer = Producer(
            {
                **self._connection,
                "enable.idempotence": True,
                "delivery.timeout.ms": int(TIMEOUT_S * 1_000),
                "linger.ms": 5,
                "error_cb": self._failed,
            },
            # else librdkafka writes every attempt to standard error
            logger=CLIENT_LOG,
        )
        problem: Any = None

        def is_settled() -> bool:
            nonlocal problem
            problem = self._described().error
            return problem is None or problem.code() not in _NEW

        settled = wait_until(is_settled, NEW_TOPIC_S)
        if problem is not None:
            self.close()
            remedy = "check its name and this login's rights" if settled else "create the topic"
            raise PublishError(f"{self._where}: {problem.str()}; {remedy}")

    def identity(self) -> str | None:
        """Return Kafka's id of the topic, which a topic that is created again does not have.

        None if the brokers know no ids (before Kafka 2.8), or do not tell this login.
        """
        from confluent_kafka import KafkaException, TopicCollection
        from confluent_kafka.admin import AdminClient

        admin = AdminClient(self._connection, logger=CLIENT_LOG)
        asked = TopicCollection([self._topic])
        try:
            topic = admin.describe_topics(asked, request_timeout=CONNECT_S)[self._topic].result()
        except KafkaException:
            return None
        return None if topic.topic_id is None else str(topic.topic_id)

    def _described(self) -> Any:
        """Return what the brokers say of the topic, once one of them answers."""
        from confluent_kafka import KafkaException

        def is_final(cause: Any, waited_s: float) -> bool:
            return cause.code() in _FINAL or waited_s > CONNECT_S

        try:
            return topics(self._producer, self._failures, is_final, self._topic)[self._topic]
        except KafkaException as refused:
            self.close()
            raise PublishError(f"{self._where}: {refused.args[0].str()}") from None

    def send(self, messages: Sequence[FeatureMessage]) -> None:
        """Write messages; at return every one of them is in the topic.

        Raises
        ------
        PublishError
            If one could not be written within a minute.
        """
        refused: list[Any] = []

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                refused.append(error)

        for message in messages:
            while True:
                try:
                    self._producer.produce(
                        self._topic, key=message.key, value=message.value, on_delivery=delivered
                    )
                    break
                except BufferError:  # full: wait for deliveries
                    self._producer.poll(0.1)
            self._producer.poll(0)
        left = self._producer.flush(TIMEOUT_S + 5.0)
        if refused or left:
            cause = refused[0].str() if refused else "no answer"
            raise PublishError(
                f"{self._where}: {len(refused) + left} of {len(messages)} messages were not "
                f"written: {cause}; the next run sends them again"
            )

    def close(self) -> None:
        """Drop what was not written; nothing, unless ``send`` has failed."""
        self._producer.purge()
        self._producer.flush(1.0)

    def _failed(self, error: Any) -> None:
        self._failures.append(error)


def topics(
    client: Any,
    failures: Sequence[Any],
    is_final: Callable[[Any, float], bool],
    topic: str | None = None,
) -> dict[str, Any]:
    """Return the topics that the login of a client sees, or one of them, by name, once a broker
    answers.

    ``failures`` are the errors that the client has reported, which say more than a call's own.
    ``is_final`` says of one of them, and the seconds waited, whether to wait no longer.

    Raises
    ------
    confluent_kafka.KafkaException
        With the error that was final.
    """
    from confluent_kafka import KafkaException

    began = time.monotonic()
    while True:
        client.poll(0)  # reports errors
        try:
            by_name: dict[str, Any] = client.list_topics(topic, timeout=1.0).topics
            return by_name
        except KafkaException as error:
            cause = failures[-1] if failures else error.args[0]
            if is_final(cause, time.monotonic() - began):
                raise KafkaException(cause) from None


def client_settings(settings: KafkaSettings) -> dict[str, str]:
    """Return the security settings in the words of librdkafka.

    >>> client_settings(KafkaSettings(user="u", password="p"))["security.protocol"]
    'SASL_PLAINTEXT'
    """
    options: dict[str, str] = {"security.protocol": settings.protocol}
    for name, path in (
        ("ssl.ca.location", settings.tls_ca),
        ("ssl.certificate.location", settings.tls_cert),
        ("ssl.key.location", settings.tls_key),
    ):
        if path is not None:
            options[name] = str(path)
    if settings.user is not None and settings.password is not None:
        options["sasl.mechanisms"] = settings.mechanism
        options["sasl.username"] = settings.user
        options["sasl.password"] = settings.password
    return options
