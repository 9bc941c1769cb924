"""All processes of the loop, and how each is lost and comes back."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from paimon_features.core.times.clock import now_ms
from paimon_features.flink.cluster import JOB_MANAGER, LocalCluster
from paimon_features.testing.servers.local_server import LocalServer
from paimon_features.testing.servers.redis_server import RedisServer
from tests.flink.loop.traffic import Exchange, Producer
from tests.flink.zookeeper import ZooKeeper
from tests.servers.kafka_server import KafkaServer
from tests.servers.online_servers import send_command
from tests.serving.chaos.processes import Follower, Server

BREAKS_MS = 3_000
"""For so long after the server or a worker is back may connections break."""


@dataclass(frozen=True, slots=True)
class Kill:
    """What was killed, when that began and was done, and when it was there again, or was left to
    its supervisor."""

    kind: str
    began_ms: int
    at_ms: int
    back_ms: int


class Loop:
    """The processes, and their kills by SIGKILL."""

    def __init__(self, folder: Path, rng: random.Random, cluster: LocalCluster) -> None:
        self.folder, self.rng, self.cluster = folder, rng, cluster
        self.kills: list[Kill] = []
        self.ended: list[str] = []
        """Processes that ended though nobody had killed them, with the end of their logs."""
        self.broker: KafkaServer
        self.zookeeper: ZooKeeper
        self.redis: RedisServer
        self.follower: Follower
        self.server: Server
        self.s3: LocalServer | None = None

    def serve(self, outside: ExitStack) -> None:
        """Start the materializer and the feature server."""
        self.follower = Follower(self.folder, poll_ms=200)
        outside.callback(lambda: self.follower.kill())
        self.server = Server(self.folder, workers=2)
        outside.callback(self._end_server)

    def round(self) -> None:
        """Kill something, or several things at once; what has no supervisor is started again."""
        self.look_after()
        kinds: dict[str, Callable[[], Callable[[], object] | None]] = {
            "job manager": self._managers(JOB_MANAGER),
            "task manager": self._managers("taskmanager-1", "taskmanager-2"),
            "both task managers": self._managers("taskmanager-1", "taskmanager-2", together=True),
            "broker": self._local(self.broker),
            "ZooKeeper": self._local(self.zookeeper),
            "Redis, back with old data": self._redis_older,
            "Redis, back empty": self._redis_empty,
            "materializer": self._materializer,
            "server's worker": self._worker,
            "server": self._server,
        }
        if self.s3 is not None:
            kinds["S3 server"] = self._local(self.s3)
        # what others depend on comes back first
        chosen = sorted(
            self.rng.sample(sorted(kinds), self.rng.choice((1, 1, 1, 2, 2, 3))),
            key=lambda kind: kind in ("materializer", "server"),
        )
        print(f"{time.strftime('%H:%M:%S')} kills: {', '.join(chosen)}", flush=True)
        down = [(kind, now_ms(), kinds[kind](), now_ms()) for kind in chosen]
        time.sleep(self.rng.choice((0.0, 0.0, self.rng.uniform(0, 4))))
        for kind, began_ms, come_back, at_ms in down:
            if come_back is not None:
                come_back()
            self.kills.append(Kill(kind, began_ms, at_ms, now_ms()))

    def look_after(self) -> None:
        """Start again what has ended by itself, as a service manager does."""
        for name, one in (("materializer", self.follower), ("server", self.server)):
            if one.process.poll() is not None:
                self.ended.append(f"{name}: {one.log.read_text()[-2_000:]}")
                self._started(one)

    def is_fresh(self, exchanges: list[Exchange], producer: Producer) -> bool:
        """Whether a reply has counted an event that was sent after the last kill."""
        self.look_after()
        wanted = 1 + sum(at_ms <= self.kills[-1].back_ms for at_ms in producer.sent_ms)
        return any(one.status == 200 and _heartbeats(one) >= wanted for one in exchanges[-50:])

    def may_break(self, one: Exchange) -> bool:
        """Whether a connection to the server may have been cut by a kill."""
        return any(
            kill.kind.startswith("server")
            and one.got_ms >= kill.began_ms
            and one.sent_ms <= kill.back_ms + BREAKS_MS
            for kill in self.kills
        )

    def report(self, exchanges: list[Exchange], producer: Producer) -> str:
        """A line for each kind of kill: how often, and the seconds from then to the first answer,
        and to the first answer with an event that was sent afterwards."""
        answered = sorted(
            (one.got_ms, one.sent_ms, _heartbeats(one)) for one in exchanges if one.status == 200
        )
        rows: dict[str, list[tuple[float, float]]] = {}
        for kill in self.kills:
            wanted = 1 + sum(at_ms <= kill.at_ms for at_ms in producer.sent_ms)
            first = next((got for got, sent, _ in answered if sent >= kill.at_ms), 0)
            fresh = next(
                (got for got, sent, n in answered if sent >= kill.at_ms and n >= wanted), 0
            )
            both = ((first - kill.at_ms) / 1_000, (fresh - kill.at_ms) / 1_000)
            rows.setdefault(kill.kind, []).append(both)
        lines = [f"{'killed':26s} times   answers after s     fresh after s (median, longest)"]
        for kind, found in sorted(rows.items()):
            first_s, fresh_s = zip(*found, strict=True)
            lines.append(
                f"{kind:26s} {len(found):5d}  {median(first_s):6.1f} {max(first_s):6.1f}    "
                f"{median(fresh_s):6.1f} {max(fresh_s):6.1f}"
            )
        restarts = {state.name: state.restarts for state in self.cluster.status().processes}
        return "\n".join([*lines, f"restarts by the cluster's supervisor: {restarts}"])

    def _managers(self, *names: str, together: bool = False) -> Callable[[], None]:
        def kill() -> None:
            running = [
                state.pid
                for state in self.cluster.status().processes
                if state.name in names and state.pid is not None
            ]
            for pid in running if together else self.rng.sample(running, min(1, len(running))):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

        return kill

    def _local(self, server: LocalServer) -> Callable[[], Callable[[], object]]:
        def kill() -> Callable[[], object]:
            server.kill()
            return server.start

        return kill

    def _redis_older(self) -> Callable[[], object]:
        # what it saves now is old when it comes back, and there are records of later snapshots
        send_command(self.redis.port, "SAVE")
        time.sleep(self.rng.uniform(0, 3))
        self.redis.kill()
        return self.redis.start

    def _redis_empty(self) -> Callable[[], object]:
        self.redis.kill()
        with suppress(FileNotFoundError):
            os.unlink(f"{self.redis._folder}/dump.rdb")
        return self.redis.start

    def _materializer(self) -> Callable[[], object]:
        self.follower.kill()
        return self.follower.start

    def _worker(self) -> None:
        if self.server.process.poll() is None and self.server.workers:
            self.server.kill_worker(self.rng)

    def _server(self) -> Callable[[], object] | None:
        if self.server.process.poll() is not None:
            return None
        self.server.kill()
        return lambda: self._started(self.server)

    def _started(self, one: Follower | Server) -> None:
        for attempt in range(40):  # its store may be one of those that are down
            try:
                return one.start()
            except AssertionError as error:
                self.ended.append(f"start {attempt}: {error}")
                time.sleep(0.5)
        raise AssertionError(self.ended[-1])

    def _end_server(self) -> None:
        if self.server.process.poll() is None:
            self.server.stop()

    def counts(self) -> Counter[str]:
        """How often each kind was killed."""
        return Counter(kill.kind for kill in self.kills)


def _heartbeats(one: Exchange) -> int:
    """How many events of user 0 a reply has counted."""
    at = one.reply["metadata"]["feature_names"].index("count")
    found: list[int | None] = one.reply["results"][at]["values"]
    return found[one.users.index(0)] or 0
