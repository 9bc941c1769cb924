"""A real Kafka broker: start, kill, start again with its data, stop without leftovers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paimon_features.core.errors import SetupError
from paimon_features.core.installation.jars import DEFAULT_GROUPS
from tests.kafka_topics import Message, Topic
from tests.servers.kafka_server import JAR_GROUP, KafkaServer

pytestmark = pytest.mark.kafka


@pytest.mark.long
def test_a_killed_broker_starts_again_with_its_address_and_messages_and_stop_removes_both() -> None:
    with KafkaServer() as broker:
        topic = Topic(broker, partitions=2)
        topic.send([Message(b"a", partition=0), Message(b"b", b"key", partition=1)])
        pid, address = broker.pid, broker.address
        broker.kill()
        assert not broker.running
        with pytest.raises(SetupError, match="call start"):
            assert broker.pid
        topic.send([Message(b"c", partition=0)], flush=False)
        assert broker.start().address == address
        assert broker.pid != pid
        topic.flush()
        assert topic.read() == [(None, b"a"), (None, b"c"), (b"key", b"b")]
        pid = broker.pid
        (folder,) = [arg for arg in command_of(pid) if arg.endswith("server.properties")]
    assert not Path(folder).parent.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_wrong_setting_is_an_error_with_the_end_of_the_log() -> None:
    with pytest.raises(SetupError, match="could not be made: .*num.network.threads"):
        KafkaServer(options={"num.network.threads": "many"}).start()


def test_the_jars_of_a_broker_are_fetched_on_request_only() -> None:
    assert JAR_GROUP not in DEFAULT_GROUPS


def command_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
