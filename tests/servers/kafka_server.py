"""A local Kafka broker for tests and first steps: one node, KRaft, on the loopback interface.

Its jars are the group ``kafka-broker`` of the lock file. It ends with the process that started it;
its data are in a temporary folder, and survive ``kill`` and ``start`` as those of a real crash do.
A broker with data to keep is to be run as a separate service.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paimon_features.core.documents.generated_text import jaas_text, java_property
from paimon_features.core.errors import SetupError
from paimon_features.core.installation.jars import class_path
from paimon_features.core.installation.java import find_java_home
from paimon_features.core.process.ports import free_ports
from paimon_features.testing.servers.local_server import LocalServer, last_messages

JAR_GROUP = "kafka-broker"
_CLUSTER_ID = "paimonFeaturesKafkaAAA"
_START_TIMEOUT_S = 90.0
_POLL_S = 0.05
_JAVA = (
    "-Xmx192m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
_SCRAM = "SCRAM-SHA-512"


@dataclass(frozen=True, slots=True)
class SecureListener:
    """A second listener, with TLS and logins by SCRAM-SHA-512 or PLAIN.

    ``certificate`` is a PEM file with the broker's private key and its certificate, ``users`` are
    passwords by name, without commas; another program of this host may see them. With
    ``client_ca``, a PEM file, clients need a certificate of it.
    """

    certificate: Path
    users: Mapping[str, str]
    client_ca: Path | None = None


class KafkaServer(LocalServer):
    """A broker on free ports of the loopback interface, as a context manager.

    ::

        with KafkaServer() as broker:
            producer = confluent_kafka.Producer({"bootstrap.servers": broker.address})

    Topics are to be created: one that does not exist is an error. ``options`` are entries of the
    broker's configuration file.
    """

    title = "the Kafka broker"
    short_name = "kafka"
    stop_timeout_s = 20.0

    def __init__(
        self, secure: SecureListener | None = None, options: Mapping[str, str] | None = None
    ) -> None:
        super().__init__()
        self.secure = secure
        self._options = dict(options or {})
        self._ports: Sequence[int] = (0, 0, 0)

    @property
    def address(self) -> str:
        """``host:port`` of the listener without security."""
        return f"127.0.0.1:{self._ports[0]}"

    @property
    def secure_address(self) -> str:
        """``host:port`` of the listener with TLS and logins."""
        return f"127.0.0.1:{self._ports[2]}"

    def start(self) -> KafkaServer:
        """Start the broker and wait until it answers; does nothing if it is running.

        After ``kill`` it has the same ports and data as before.

        Raises
        ------
        SetupError
            If there is no Java or no jar, or it does not start; the message has the end of its log.
        """
        if self.running:
            return self
        folder = self._folder
        if folder is None:
            folder = self._make_folder()
            self._ports = free_ports(3)
            self._format(folder)
        properties = str(folder / "server.properties")
        self._launch(folder, _java("kafka.Kafka", properties), _environment())
        if not self._answers():
            log_end = self._log_end()
            self.stop()
            raise SetupError(f"the Kafka broker did not start; its log ends with: {log_end}")
        return self

    def _format(self, folder: Path) -> None:
        """Write the configuration, and an empty log with the users."""
        path = folder / "server.properties"
        path.touch(0o600)
        entries = self._entries(folder)
        path.write_text(
            "".join(f"{name}={java_property(text)}\n" for name, text in entries.items())
        )
        command = ["format", "-t", _CLUSTER_ID, "-c", str(path)]
        for user, password in (self.secure.users if self.secure else {}).items():
            command += ["--add-scram", f"{_SCRAM}=[name={user},password={password}]"]
        done = subprocess.run(
            _java("kafka.tools.StorageTool", *command),
            capture_output=True,
            text=True,
            env=_environment(),
        )
        if done.returncode != 0:
            self.stop()
            raise SetupError(
                f"the folder of a Kafka broker could not be made: {last_messages(done.stderr)}"
            )

    def _entries(self, folder: Path) -> dict[str, str]:
        plain, controller, secure = self._ports
        entries = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listeners": f"PLAINTEXT://127.0.0.1:{plain},CONTROLLER://127.0.0.1:{controller}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(folder / "data"),
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "auto.create.topics.enable": "false",
            # a killed broker may return once its session has expired: 9 s by default
            "broker.session.timeout.ms": "2000",
            "broker.heartbeat.interval.ms": "500",
            # by default 128 MB of heap, and a pass every 15 s
            "log.cleaner.dedupe.buffer.size": str(4 << 20),
            "log.cleaner.backoff.ms": "200",
        }
        if self.secure is not None:
            users = " ".join(f"user_{u}={jaas_text(p)}" for u, p in self.secure.users.items())
            modules = "org.apache.kafka.common.security"
            name = "listener.name.secure"
            entries["listeners"] += f",SECURE://127.0.0.1:{secure}"
            entries["listener.security.protocol.map"] += ",SECURE:SASL_SSL"
            entries["sasl.enabled.mechanisms"] = f"{_SCRAM},PLAIN"
            entries[f"{name}.{_SCRAM.lower()}.sasl.jaas.config"] = (
                f"{modules}.scram.ScramLoginModule required;"
            )
            entries[f"{name}.plain.sasl.jaas.config"] = (
                f"{modules}.plain.PlainLoginModule required {users};"
            )
            entries["ssl.keystore.type"] = "PEM"
            entries["ssl.keystore.location"] = str(self.secure.certificate)
            if self.secure.client_ca is not None:
                # only with TLS alone would this be the default; for SASL_SSL it must be named here
                entries[f"{name}.ssl.client.auth"] = "required"
                entries["ssl.truststore.type"] = "PEM"
                entries["ssl.truststore.location"] = str(self.secure.client_ca)
        return {**entries, **self._options}

    def _answers(self) -> bool:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while self.running and time.monotonic() < deadline:
            if _replies(self._ports[0]):
                return self.running
            time.sleep(_POLL_S)
        return False


def _java(*arguments: str) -> list[str]:
    jars = class_path([JAR_GROUP])
    return [str(find_java_home() / "bin" / "java"), *_JAVA, "-cp", jars, *arguments]


def _environment() -> dict[str, str]:
    # settings for another Java program would take its memory, or its debugging port
    hidden = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "CLASSPATH")
    return {name: value for name, value in os.environ.items() if name not in hidden}


def _replies(port: int) -> bool:
    """Whether a broker answers requests: it listens before it does."""
    # ApiVersions, version 0: length; key 18, version, correlation id, no client id
    request = struct.pack(">ihhih", 10, 18, 0, 1, -1)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as connection:
            connection.sendall(request)
            reply = connection.recv(8)
    except OSError:
        return False
    return len(reply) == 8 and struct.unpack(">ii", reply)[1] == 1
