"""Freshness: from the moment an event happens until a lookup counts it.

    python -m benchmarks.freshness --seconds 60 --rate 5000

Every part is a process of its own, started as a user would, with its defaults: a writer that
commits what has happened about every 100 ms to the events table (``EventWriter``), the tile job
(``submit``; here a checkpoint every 250 ms), the materializer (``materialize --follow``) and a
Redis-protocol server. Some of the users are watched: their events carry a growing number, and
lookups, a few milliseconds apart, say which number they have got to. An event's freshness is the
time of the first lookup that counts it, less the event's own time.

::

    event     committed as event    committed in a tile    seen by a lookup
      |---- write ----|------- tile job ------|--- materialize ---|
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from paimon_features.core.errors import JobError, StoreNotReadyError
from paimon_features.core.times.clock import now_ms
from paimon_features.lake import EventWriter, snapshots
from paimon_features.lake.ownership.lease import acquire
from paimon_features.lake.reading.deltas import read_delta, read_file
from paimon_features.project import Project
from paimon_features.testing.servers.redis_server import RedisServer

USERS = 100_000
WATCHED = 50
WATCHED_EVERY = 50
"""Each so-manyth event belongs to a watched user."""
STEP = WATCHED * WATCHED_EVERY
"""The events of one watched user are so many numbers apart."""
COMMIT_MS = 100
POLL_S = 0.01
WARM_UP_S = 15.0

FEATURES = """
import paimon_features as pf

purchases = pf.EventSource(
    "purchases",
    schema={"user_id": pf.Int64, "amount": pf.Float64, "number": pf.Int64, "at_ms": pf.Int64},
    event_time="at_ms",
)
spend = pf.FeatureView(
    "spend",
    source=purchases,
    entity=pf.Entity("user", keys={"user_id": pf.Int64}),
    features=[
        pf.Count(windows=["1h", "7d"]),
        pf.Sum("amount", windows=["1h", "1d", "30d"], scale=2),
        pf.DecayedSum("amount", half_life="1d", windows=["30d"]),
        pf.Max("number", windows=["1h"]),
    ],
)
service = pf.FeatureService("spend_v1", [spend])
"""


# -- the writer's process ----------------------------------------------------------------------


def write(root: Path, rate: int) -> None:
    """Commit what has happened since the last commit, until SIGTERM.

    Prints a line per commit: how many events there are by now and when they were committed; the
    first line is that of the start.
    """
    project = Project.open(root)
    source = project.definitions.source("purchases")
    rng = np.random.default_rng(0)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with acquire(project.lake, source.table, purpose="write events"):
        writer = EventWriter(project.lake, source.table, source.event_time, now_ms)
        began, written = time.time(), 0
        print(0, began, flush=True)
        while not stop.is_set():
            due = int((time.time() - began) * rate)
            if due == written:
                time.sleep(0.001)
                continue
            numbers = np.arange(written, due)
            users = rng.zipf(1.3, due - written) * 2_654_435_761 % USERS + WATCHED
            watched = numbers % WATCHED_EVERY == 0
            users[watched] = numbers[watched] // WATCHED_EVERY % WATCHED
            writer.write(
                pa.table(
                    {
                        "user_id": users,
                        "amount": np.round(rng.gamma(2.0, 20.0, len(users)), 2),
                        "number": numbers,
                        "at_ms": (began * 1_000 + numbers * 1_000 / rate).astype(np.int64),
                    }
                )
            )
            written = due
            print(written, time.time(), flush=True)
            stop.wait(max(0.0, began + written / rate + COMMIT_MS / 1_000 - time.time()))


# -- the watcher -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Seen:
    """An event of a watched user, and when (s since 1970) a lookup counted it first."""

    number: int
    at: float


class Watcher:
    """Looks the watched users up and notes when each of their events is seen first."""

    def __init__(self, project: Project) -> None:
        self.refs = project.refs("spend_v1")
        self.fetcher = project.online.fetcher("spend_v1")
        self.reached: dict[int, int] = {}
        self.lookups = 0

    def look(self) -> list[Seen]:
        """One lookup of all of them; the events that it counts and none before did."""
        response = self.fetcher.get(self.refs, {"user_id": range(WATCHED)}, now_ms())
        at = time.time()
        self.lookups += 1
        seen = []
        for user, number in enumerate(response.to_pydict()["max_number_1h"]):
            if number is None:
                continue
            following = self.reached.get(user, number) + STEP
            seen += [Seen(n, at) for n in range(following, number + 1, STEP)]
            self.reached[user] = number
        return seen

    def watch(self, seconds: float) -> list[Seen]:
        """Look again and again for so long."""
        seen: list[Seen] = []
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            seen += self.look()
            time.sleep(POLL_S)
        return seen

    def await_first(self, timeout_s: float = 120.0) -> None:
        """Wait until the whole path works."""
        deadline = time.monotonic() + timeout_s
        while len(self.reached) < WATCHED:
            with suppress(StoreNotReadyError):
                self.look()
            if time.monotonic() > deadline:
                raise JobError(f"no event was seen in {timeout_s:.0f} s")
            time.sleep(0.1)


# -- all of it ---------------------------------------------------------------------------------


def measure(root: Path, rate: int, seconds: float) -> dict[str, np.ndarray]:
    """Start everything, watch, end everything; per watched event the hops, in seconds."""
    project = Project.open(root)
    project.apply()
    with ExitStack() as stack:
        logs = stack.enter_context((root / "log").open("w"))
        command = [sys.executable, "-m", "paimon_features"]
        writer = stack.enter_context(
            process([sys.executable, "-m", "benchmarks.freshness", "--write", str(root),
                      "--rate", str(rate)], stdout=subprocess.PIPE, stderr=logs)
        )  # fmt: skip
        for words in (["submit", "spend"], ["materialize", "spend", "--follow"]):
            stack.enter_context(
                process([*command, *words, "--project", str(root)], stdout=logs, stderr=logs)
            )
        commits: list[tuple[int, float]] = []
        threading.Thread(target=_read, args=(writer, commits), daemon=True).start()
        watcher = Watcher(project)
        watcher.await_first()
        watcher.watch(WARM_UP_S)
        seen = watcher.watch(seconds)
    print(f"{watcher.lookups:,} lookups of {WATCHED} users, {len(commits):,} commits of events")
    return _hops(project, rate, commits, seen)


def _hops(
    project: Project, rate: int, commits: Sequence[tuple[int, float]], seen: Sequence[Seen]
) -> dict[str, np.ndarray]:
    # the first line is that of the start: number 0 happened then
    number, time_s = (np.array(side) for side in zip(*commits, strict=True))
    numbers = np.array([one.number for one in seen])
    happened = time_s[0] + numbers / rate
    written = time_s[np.searchsorted(number, numbers, side="right")]
    tiled = _tiled(project, numbers)
    at = np.array([one.at for one in seen])
    return {
        "event to lookup": at - happened,
        "  write": written - happened,
        "  tile job": tiled - written,
        "  materialize": at - tiled,
    }


def _tiled(project: Project, numbers: np.ndarray) -> np.ndarray:
    """When each event was committed in a tile: the first commit that holds its number."""
    table = project.generation(project.view("spend")).table
    committed = np.full(len(numbers), np.inf)
    users = numbers // WATCHED_EVERY % WATCHED
    for one in reversed([s for s in snapshots(project.lake, table) if s.kind == "APPEND"]):
        for file in read_delta(project.lake, table, one.id).files:
            rows = read_file(file, ["user_id", "p_max_number"])
            newest = np.full(WATCHED, -1)
            user = rows["user_id"].to_numpy()
            watched = user < WATCHED
            np.maximum.at(newest, user[watched], rows["p_max_number"].to_numpy()[watched])
            committed[newest[users] >= numbers] = one.time_ms / 1_000
    return committed


@contextmanager
def process(words: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that is stopped at the end of the block, and killed if it does not end."""
    with subprocess.Popen(words, text=True, **options) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def _read(writer: subprocess.Popen[str], commits: list[tuple[int, float]]) -> None:
    assert writer.stdout is not None
    for line in writer.stdout:
        number, time_s = line.split()
        commits.append((int(number), float(time_s)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rate", type=int, default=5_000, help="events per second")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--checkpoint-ms", type=int, default=250, help="of the tile job")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write is not None:
        write(arguments.write, arguments.rate)
        return
    with tempfile.TemporaryDirectory() as folder, RedisServer() as server:
        root = Path(folder)
        (root / "features.py").write_text(FEATURES)
        (root / "paimon-features.toml").write_text(
            f'[project]\nname = "bench"\n[online]\nurl = "{server.url}"\n'
            f'[flink]\ncheckpoint_interval = "{arguments.checkpoint_ms}ms"\n'
        )
        hops = measure(root, arguments.rate, arguments.seconds)
    print(f"{'seconds':16} {'events':>8} {'p50':>7} {'p90':>7} {'p99':>7} {'max':>7}")
    for name, values in hops.items():
        marks = " ".join(f"{q:7.2f}" for q in np.percentile(values, (50, 90, 99, 100)))
        print(f"{name:16} {len(values):8,} {marks}")


if __name__ == "__main__":
    main()
