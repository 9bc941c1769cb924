"""A real ZooKeeper server for tests: one node on the loopback interface, from the locked jars."""

from __future__ import annotations

import socket
import time
from contextlib import suppress

from paimon_features.core.errors import SetupError
from paimon_features.core.installation.jars import class_path
from paimon_features.core.installation.java import find_java_home
from paimon_features.core.process.ports import free_ports
from paimon_features.testing.servers.local_server import LocalServer

JAR_GROUPS = ("kafka-broker", "zookeeper")
_TIMEOUT_S = 60.0
_JAVA = ("-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class ZooKeeper(LocalServer):
    """A server, as a context manager; ``address`` is what ``cluster start --ha`` takes."""

    title = "ZooKeeper"
    short_name = "zookeeper"

    def __init__(self) -> None:
        super().__init__()
        (self.port,) = free_ports(1)

    @property
    def address(self) -> str:
        return f"zookeeper://127.0.0.1:{self.port}/tests"

    def start(self) -> ZooKeeper:
        """Start it, or start it again with its data, and wait until it answers.

        Raises
        ------
        SetupError
            If there is no Java or no jar, or it does not start.
        """
        folder = self._folder or self._make_folder()
        settings = {
            "tickTime": 500,
            "minSessionTimeout": 2_000,
            "dataDir": folder / "data",
            "clientPort": self.port,
            "clientPortAddress": "127.0.0.1",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr",
        }
        path = folder / "zoo.cfg"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        java = str(find_java_home() / "bin" / "java")
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        self._launch(folder, [java, *_JAVA, "-cp", class_path(JAR_GROUPS), main, str(path)])
        deadline = time.monotonic() + _TIMEOUT_S
        while b"Mode:" not in self._status():
            if not self.running or time.monotonic() > deadline:
                raise SetupError(f"ZooKeeper did not start; its log ends with: {self._log_end()}")
            time.sleep(0.05)
        return self

    def _status(self) -> bytes:
        with (
            suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as connection,
        ):
            connection.sendall(b"srvr")
            parts = []
            while part := connection.recv(4_096):
                parts.append(part)
            return b"".join(parts)
        return b""
