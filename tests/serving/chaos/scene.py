"""Everything at once: store, lake, materializer, server, clients; and what a run comes to."""

from __future__ import annotations

import os
import random
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from paimon_features.testing.servers.redis_server import RedisServer
from tests.os_processes import is_running
from tests.servers.online_servers import SentinelServers, free_ports, wait_for
from tests.serving.chaos.faults import Fault
from tests.serving.chaos.processes import Follower, Proxy, Server, resident_mb
from tests.serving.chaos.readers import Judge, Readers, Reported
from tests.serving.chaos.shop import Look, Shop, now_ms

BACK_S = 2.0 if "PAIMON_FEATURES_WORLDS" in os.environ else 10.0
"""So soon after the store can be read does everybody get answers again; in the suite other tests
run next to it."""
BREAKS_MS = 3_000
"""For so long after a worker was killed may connections break."""
REBUILT_S = 90.0
GROWTH_MB = 10.0


@dataclass(frozen=True)
class Recovery:
    """After a fault was over: when the store could be read, when all clients had answers again and
    none was refused any more (from then), and when it was up to date (from the start)."""

    fault: str
    built_s: float
    answered_s: float
    caught_up_s: float


@dataclass
class Scene:
    """One world, of one seed; ``kind`` is direct, proxied or sentinel."""

    folder: Path
    seed: int
    kind: str
    recoveries: list[Recovery] = field(default_factory=list)

    def __enter__(self) -> Self:
        self.rng = random.Random(self.seed)
        self._broken_ms: list[int] = []
        self._stack = ExitStack()
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def _start(self) -> None:
        enter, stack = self._stack.enter_context, self._stack
        self.redis: Any = None
        self.proxy: Any = None
        self.sentinels: Any = None
        if self.kind == "sentinel":
            self.sentinels = enter(SentinelServers(self.folder / "sentinels"))
            url = inner = self.sentinels.url
        else:
            options = {"enable-debug-command": "local"}
            self.redis = enter(RedisServer(port=free_ports(1)[0], options=options))
            url = inner = self.redis.url
            if self.kind == "proxied":
                self.proxy = Proxy(self.redis.port)
                stack.callback(self.proxy.close)
                url = f"redis://127.0.0.1:{self.proxy.port}/0"
        self.look = Look(inner)
        self.shop = Shop(self.folder / "shop", url, random.Random(self.seed + 1))
        self.follower = Follower(self.shop.folder)
        stack.callback(lambda: self.follower.kill())
        self.server = Server(self.shop.folder)
        stack.callback(self._end_server)
        wait_for(self.look.is_built, "the view is built", REBUILT_S)
        enter(self.shop)
        self.readers = Readers(self.shop, self.server.port, self.seed)
        stack.callback(self.readers.stop)
        self.readers.start()
        started_ms = now_ms()
        wait_for(lambda: self.readers.all_answered_since(started_ms), "answers", REBUILT_S)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def _end_server(self) -> None:
        if self.server.process.poll() is None:
            self.server.stop()

    def breaks_now(self) -> None:
        self._broken_ms.append(now_ms())

    def suffer(self, *faults: Fault) -> Recovery:
        """Let things happen, one at once after the other, and wait until everything is well."""
        for fault in faults:
            fault(self)
        over = time.monotonic()
        generation = self.shop.record.generation
        newest = self.shop.committed()[generation]
        built_s = wait_for(self.look.is_built, "the store can be read again", REBUILT_S)
        built_ms = now_ms()
        answered_s = wait_for(
            lambda: self.readers.all_answered_since(built_ms), "all clients have answers", REBUILT_S
        )
        refused = [
            (one.got_ms - built_ms) / 1_000
            for one in self.readers.reported
            if one.sent_ms >= built_ms and one.status != 200
        ]
        wait_for(
            lambda: self.look.holds(generation, newest, self.shop.fingerprint),
            "the store is up to date again",
            REBUILT_S,
        )
        recovery = Recovery(
            ", ".join(fault.__name__ for fault in faults),
            built_s,
            max([answered_s, *refused]),
            time.monotonic() - over,
        )
        self.recoveries.append(recovery)
        return recovery

    def verdict(self) -> str:
        """Check every reply; returns what the run came to. AssertionError with what was wrong."""
        judge = Judge(self.shop)
        replies = list(self.readers.reported)
        wrong = [
            f"{(one.sent_ms - self.shop.start_ms) / 1_000:.2f} s: {text}"
            for one in replies
            if (text := judge.wrong(one, self._may_break(one))) is not None
        ]
        counts = {
            s: sum(one.status == s for one in replies) for s in {one.status for one in replies}
        }
        lines = [
            f"seed {self.seed}, {self.kind}: {len(replies)} answers {counts}, {judge.stale} stale, "
            f"{judge.behind} with snapshots to come, generations {max(self.shop.commits)}, "
            f"commits {sum(self.shop.committed().values())}"
        ] + [
            f"  {r.fault:40s} readable after {r.built_s:5.2f} s, answered {r.answered_s:5.2f} s "
            f"later, up to date after {r.caught_up_s:5.2f} s"
            for r in self.recoveries
        ]
        report = "\n".join(lines)
        assert not wrong, f"{report}\n{len(wrong)} wrong replies\n" + "\n".join(wrong[:10])
        # two workers that are killed one after the other leave nobody to answer for a while
        late = [
            r for r in self.recoveries if r.answered_s > BACK_S and "worker_killed" not in r.fault
        ]
        assert not late, f"{report}\nlater than {BACK_S} s: {late}"
        return report

    def _may_break(self, one: Reported) -> bool:
        return any(one.got_ms >= at and one.sent_ms <= at + BREAKS_MS for at in self._broken_ms)

    def memory(self) -> dict[int, float]:
        """Resident MB of each worker."""
        return {pid: resident_mb(pid) for pid in self.server.workers}

    def check_end(self) -> None:
        """Processes end when they are stopped, and log no faults of their own."""
        wait_for(lambda: len(self.server.workers) == 2, "both workers are there again")
        self.readers.stop()
        pid = self.follower.process.pid
        assert self.follower.process.poll() is None, self.follower.log.read_text()[-3_000:]
        self.follower.stop()
        assert not is_running(pid)
        self.server.stop()
        for log in (self.server.log, self.follower.log):
            assert "Traceback" not in log.read_text(), log.read_text()[-5_000:]
