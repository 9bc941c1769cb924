"""Real servers for tests of the online store: a cluster, sentinels, TLS in front of one.

All are processes of ``RedisServer``, on free ports of the loopback, in memory, and end with us.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from paimon_features.core.errors import OnlineStoreError
from paimon_features.core.process.ports import free_ports
from paimon_features.testing.servers.redis_server import RedisServer, find_redis_server
from paimon_features.testing.servers.resp import Reply, connect

SLOTS = 16_384
START_TIMEOUT_S = 120.0  # a loaded machine starts slowly; only failures wait for it


def wait_for(holds: Callable[[], bool], what: str, timeout_s: float = START_TIMEOUT_S) -> float:
    """Wait until a condition is true; return the seconds. AssertionError on timeout."""
    started = time.monotonic()
    while time.monotonic() - started < timeout_s:
        with contextlib.suppress(OnlineStoreError):
            if holds():
                return time.monotonic() - started
        time.sleep(0.01)
    raise AssertionError(f"timeout after {timeout_s} s, waiting for: {what}")


def send_command(port: int, *words: str) -> Reply:
    """Send a command to the server on a local port and return its reply."""
    with connect(f"redis://127.0.0.1:{port}/0", START_TIMEOUT_S) as connection:
        return connection.request(*words)


class _Servers:
    """Processes that start and end together."""

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Self:
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError


class ClusterServers(_Servers):
    """A cluster of ``primaries`` nodes; the first one has ``replicas`` replicas.

    If slots have no node, the others continue to be served. A paused machine looks like one that
    has failed: with a long ``node_timeout_ms`` the replica takes over by command alone.
    """

    def __init__(self, primaries: int = 3, replicas: int = 0, node_timeout_ms: int = 500) -> None:
        options = {
            "cluster-enabled": "yes",
            "cluster-node-timeout": str(node_timeout_ms),
            "cluster-require-full-coverage": "no",
            "cluster-replica-validity-factor": "0",
            "repl-diskless-sync-delay": "0",
        }
        self.nodes = [
            RedisServer(port=port, options={**options, "cluster-port": str(bus)})
            for port, bus in zip(*[iter(free_ports(2 * (primaries + replicas)))] * 2, strict=True)
        ]
        self._primaries = primaries

    @property
    def url(self) -> str:
        """The URL of the cluster, with all of its nodes."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def start(self) -> Self:
        """Start the nodes, assign slots, and wait until all agree."""
        for node in self.nodes:
            node.start()
        edges = [SLOTS * i // self._primaries for i in range(self._primaries + 1)]
        for i, node in enumerate(self.nodes[: self._primaries]):
            send_command(
                node.port, "CLUSTER", "ADDSLOTSRANGE", str(edges[i]), str(edges[i + 1] - 1)
            )
            # otherwise two nodes may have the same configuration epoch, and take time to agree
            send_command(node.port, "CLUSTER", "SET-CONFIG-EPOCH", str(i + 1))
        first = self.nodes[0]
        for node in self.nodes[1:]:
            # the cluster bus has a separate port: the default, 10,000 higher, may be in use
            bus = node._options["--cluster-port"]
            send_command(first.port, "CLUSTER", "MEET", "127.0.0.1", str(node.port), bus)
        wait_for(self._is_whole, "the nodes know each other")
        for node in self.nodes[self._primaries :]:
            send_command(
                node.port, "CLUSTER", "REPLICATE", str(send_command(first.port, "CLUSTER", "MYID"))
            )
        wait_for(self.is_well, "all slots are served")
        return self

    def stop(self) -> None:
        """End all nodes."""
        for node in self.nodes:
            node.stop()

    def is_well(self) -> bool:
        """Whether all running nodes serve, agree on the slots, and replicas are in sync."""
        running = [node for node in self.nodes if node.running]
        if len({self._view_of(node) for node in running}) > 1:
            return False
        for node in running:
            if "cluster_state:ok" not in str(send_command(node.port, "CLUSTER", "INFO")):
                return False
            if "master_link_status:down" in str(send_command(node.port, "INFO", "replication")):
                return False
        slots = send_command(running[0].port, "CLUSTER", "SLOTS")
        assert isinstance(slots, list)
        ranges = [(int(str(s[0])), int(str(s[1]))) for s in slots if isinstance(s, list)]
        return sum(last - first + 1 for first, last in ranges) == SLOTS

    def flush(self) -> None:
        """Remove all keys."""
        for node in self.nodes:
            if "role:master" in str(send_command(node.port, "INFO", "replication")):
                send_command(node.port, "FLUSHALL")

    def _view_of(self, node: RedisServer) -> frozenset[tuple[str, ...]]:
        """The nodes with their slots and configuration epochs."""
        lines = [
            line.split() for line in str(send_command(node.port, "CLUSTER", "NODES")).splitlines()
        ]
        return frozenset((words[0], words[6], *words[8:]) for words in lines)

    def _is_whole(self) -> bool:
        known = f"cluster_known_nodes:{len(self.nodes)}"
        return all(known in str(send_command(node.port, "CLUSTER", "INFO")) for node in self.nodes)


class SentinelServers(_Servers):
    """A primary, a replica, and three sentinels that promote it if the primary fails.

    A paused machine looks like one that has failed: with a long ``down_after_ms`` the sentinels
    promote it by ``SENTINEL FAILOVER`` alone.
    """

    def __init__(self, folder: Path, service: str = "features", down_after_ms: int = 500) -> None:
        self._folder = folder
        self._service = service
        self._down_after_ms = down_after_ms
        self.ports = free_ports(3)
        self._sentinels: list[subprocess.Popen[bytes]] = []
        self.servers = [
            RedisServer(port=port, options={"repl-diskless-sync-delay": "0"})
            for port in free_ports(2)
        ]

    @property
    def url(self) -> str:
        """The URL, with the sentinels and the service."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        return f"redis+sentinel://{hosts}/{self._service}"

    def start(self) -> Self:
        """Start everything, and wait until the sentinels know the replica and each other."""
        primary, replica = (server.start() for server in self.servers)
        send_command(replica.port, "REPLICAOF", "127.0.0.1", str(primary.port))
        wait_for(
            lambda: (
                "master_link_status:up" in str(send_command(replica.port, "INFO", "replication"))
            ),
            "the replica is in sync",
        )
        for port in self.ports:
            self._start_sentinel(port, primary.port)
        for port in self.ports:
            wait_for(lambda port=port: self._knows_all(port), "the sentinels know all")  # type: ignore[misc]
        return self

    def stop(self) -> None:
        """End everything."""
        for sentinel in self._sentinels:
            sentinel.kill()
            sentinel.wait()
        self._sentinels.clear()
        for server in self.servers:
            server.stop()

    def primary_port(self) -> int:
        """The port of the primary according to most sentinels."""
        replies = [
            send_command(port, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)
            for port in self.ports
        ]
        ports = [int(str(reply[1])) for reply in replies if isinstance(reply, list)]
        return max(set(ports), key=ports.count)

    def agree_on(self, port: int) -> bool:
        """Whether all sentinels report this port."""
        return all(
            send_command(s, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)
            == ["127.0.0.1", str(port)]
            for s in self.ports
        )

    def _start_sentinel(self, port: int, primary: int) -> None:
        folder = self._folder / f"sentinel-{port}"
        folder.mkdir(parents=True)
        lines = [
            f"port {port}",
            "bind 127.0.0.1",
            f"dir {folder}",
            f"sentinel monitor {self._service} 127.0.0.1 {primary} 2",
            f"sentinel down-after-milliseconds {self._service} {self._down_after_ms}",
            f"sentinel failover-timeout {self._service} {8 * self._down_after_ms}",
        ]
        (folder / "sentinel.conf").write_text("\n".join(lines) + "\n")
        command = [str(find_redis_server()), str(folder / "sentinel.conf"), "--sentinel"]
        with (folder / "log").open("wb") as log:
            self._sentinels.append(subprocess.Popen(command, stdout=log, stderr=log))

    def _knows_all(self, port: int) -> bool:
        found = send_command(port, "SENTINEL", "MASTER", self._service)
        assert isinstance(found, list)
        fields = {str(name): value for name, value in zip(found[::2], found[1::2], strict=True)}
        return fields["num-slaves"] == "1" and fields["num-other-sentinels"] == "2"


class TlsProxy(_Servers):
    """A TLS proxy of a local port, for servers built without TLS.

    ``folder`` gets a CA, a certificate of ``localhost`` and one for clients, made by openssl.
    """

    def __init__(self, folder: Path, port: int, *, client_certificate: bool = False) -> None:
        self._folder = folder
        self._target = port
        self._wants_client = client_certificate
        self._stopped = False
        self.ca = folder / "ca.pem"
        self.port = 0

    def certificate(self, name: str) -> tuple[Path, Path]:
        """Certificate and key, signed by the CA: ``localhost``, or ``client``."""
        return self._folder / f"{name}.pem", self._folder / f"{name}.key"

    def start(self) -> Self:
        """Create the certificates and listen."""
        self._make_certificates()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.certificate("localhost"))
        if self._wants_client:
            context.load_verify_locations(self.ca)
            context.verify_mode = ssl.CERT_REQUIRED
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(context,), daemon=True).start()
        return self

    def stop(self) -> None:
        """Stop listening; connections end with their clients."""
        self._stopped = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self, context: ssl.SSLContext) -> None:
        while not self._stopped:
            with contextlib.suppress(OSError):
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(context, client), daemon=True).start()

    def _serve(self, context: ssl.SSLContext, plain: socket.socket) -> None:
        address = ("127.0.0.1", self._target)
        with (
            contextlib.suppress(OSError),
            plain,
            context.wrap_socket(plain, True) as client,
            socket.create_connection(address) as server,
        ):
            threading.Thread(target=_pump, args=(server, client), daemon=True).start()
            _pump(client, server)

    def _make_certificates(self) -> None:
        def openssl(*words: Any) -> None:
            subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)

        key = self._folder / "ca.key"
        new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        # Python 3.13 verifies by RFC 5280: a CA says that it may sign certificates
        openssl(
            "req", "-x509", *new_key, "-keyout", key, "-out", self.ca, "-subj", "/CN=test CA",
            "-addext", "keyUsage=critical,keyCertSign,cRLSign",
        )  # fmt: skip
        for name in ("localhost", "client"):
            certificate, own_key = self.certificate(name)
            openssl(
                "req", "-x509", *new_key, "-keyout", own_key, "-out", certificate,
                "-CA", self.ca, "-CAkey", key, "-subj", f"/CN={name}",
                "-addext", f"subjectAltName=DNS:{name}", "-addext", "basicConstraints=CA:FALSE",
            )  # fmt: skip


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
