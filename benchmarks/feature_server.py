"""The feature server compared with Feast's Python feature server, over one Redis-protocol server.

    python -m benchmarks.feature_server --feast PYTHON --wrk /usr/bin/wrk     # about six minutes
    python -m benchmarks.feature_server --feast PYTHON --wrk /usr/bin/wrk --rounds 3 --seconds 3
    python -m benchmarks.feature_server --feast PYTHON --small

The second takes about two and a half minutes.

PYTHON is the interpreter of a virtual environment of its own, as Feast pins other versions:

    python3.11 -m venv ~/feast && ~/feast/bin/pip install 'feast[redis]==0.67.0' hiredis

Both servers answer for the same entities, each with one worker on uvloop and httptools, metrics and
request logging on, and the features listed in the request; ours also checks a token. Feast reads 12
finished values of an entity; ours merges at least 50 tiles of it into 12 features at each request.
They are queried in turn, round after round, by a generator in this process (see ``_load``), so that
whatever else the machine does meets both. Without --feast only ours is measured. With --wrk the
rates are measured by wrk, which takes less of the machine.

Printed: requests a second of one entity at 1, 16 and 32 connections, and the processor time of a
worker for a request (at 1 connection also of ours that reads the store by its Unix socket); the
99th percentile at one fixed arrival rate, half of what Feast reaches; entity rows a second at 100
entities per request, in JSON and in Arrow; memory of a worker; seconds from start to ready; with
--two-workers also two workers and one.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

from benchmarks._load import Measured, closed_loop, open_loop, post, wrk_loop
from benchmarks._tiles import tile_rows
from paimon_features.core.windows import HOUR_MS, MINUTE_MS
from paimon_features.definitions import load_definitions
from paimon_features.online.store import open_store
from paimon_features.testing.servers.redis_server import RedisServer
from tests.servers.online_servers import free_ports
from tests.tile_lake import PROJECT, TileLake

ARROW = "application/vnd.apache.arrow.stream"
NAMES = 12
TILES = 60
"""Tiles of an entity, all within the longest window."""

DEFINITIONS = """\
import paimon_features as pf

source = pf.EventSource(
    "spend", schema={"user": pf.Int64, "t": pf.Int64, "amount": pf.Float64}, event_time="t"
)
spend = pf.FeatureView(
    "spend",
    source=source,
    entity=pf.Entity("user", keys={"user": pf.Int64}),
    features=[
        pf.Sum("amount", windows=["1h", "6h", "1d", "7d"], scale=2),
        pf.Count(windows=["1h", "6h", "1d", "7d"]),
        pf.Max("amount", windows=["1d", "7d"]),
        pf.DecayedSum("amount", half_life="1d", windows=["7d"]),
        pf.Mean("amount", windows=["7d"], scale=2),
    ],
)
service = pf.FeatureService("churn_v1", [spend])
"""

FEAST_YAML = """\
project: bench
provider: local
registry: {{path: registry.db, cache_ttl_seconds: 3600}}
online_store: {{type: redis, connection_string: "127.0.0.1:{port},db=1"}}
offline_store: {{type: file}}
entity_key_serialization_version: 3
"""

FEAST_SETUP = """\
import datetime, sys
import numpy as np, pandas as pd
from feast import Entity, FeatureStore, FeatureView, Field, FileSource, ValueType
from feast.types import Float64, Int64

users, names = int(sys.argv[1]), int(sys.argv[2])
rng = np.random.default_rng(0)
rows = pd.DataFrame({"user": np.arange(users)})
for i in range(names):
    rows[f"f{i}"] = rng.integers(0, 1000, users) if i % 3 == 0 else rng.random(users) * 1000
rows["event_timestamp"] = pd.Timestamp(datetime.datetime.now(datetime.timezone.utc))
rows.to_parquet("rows.parquet")
user = Entity(name="user", join_keys=["user"], value_type=ValueType.INT64)
view = FeatureView(
    name="spend", entities=[user], ttl=datetime.timedelta(days=365), online=True,
    source=FileSource(path="rows.parquet", timestamp_field="event_timestamp"),
    schema=[Field(name=f"f{i}", dtype=Int64 if i % 3 == 0 else Float64) for i in range(names)],
)
store = FeatureStore(repo_path=".")
store.apply([user, view])
store.write_to_online_store("spend", rows)
"""


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    users: int
    rounds: int
    seconds: float


FULL = Size(20_000, 5, 5.0)
SMALL = Size(500, 1, 1.0)


@dataclass(frozen=True)
class Server:
    """A running server, and the requests sent to it."""

    name: str
    process: subprocess.Popen[bytes]
    port: int
    ready_s: float
    single: Sequence[bytes]
    many: Sequence[bytes]
    token: str = ""

    def processor_s(self) -> float:
        """Processor time of all its processes so far."""
        ticks = 0
        for pid in [self.process.pid, *_children(self.process.pid)]:
            of = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(of[11]) + int(of[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def resident_mb(self) -> float:
        """Memory of its largest process: the worker, or one of them."""
        pids = [self.process.pid, *_children(self.process.pid)]
        pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids]
        return max(pages) * os.sysconf("SC_PAGESIZE") / 2**20


def fill(folder: Path, url: str, users: int) -> int:
    """A project with its tiles in the online store; the time of its newest event."""
    write_project(folder, url)
    view = load_definitions(folder / "features.py").views["spend"]
    lake = TileLake(folder / "tiles", view, buckets=4)
    rng = np.random.default_rng(0)
    newest = int(time.time() * 1000)
    # axes: users, tiles; half of them in the last hours, where windows read the finest tiles
    recent = np.arange(TILES // 2) * 5 * MINUTE_MS
    older = HOUR_MS * 3 + np.arange(TILES - TILES // 2) * 5 * HOUR_MS
    back = np.concatenate([recent, older])
    time_ms = (newest - back[None, :] - rng.integers(0, MINUTE_MS, (users, TILES))).ravel()
    tile = time_ms // (5 * MINUTE_MS) * 5 * MINUTE_MS
    user = np.repeat(np.arange(users), TILES)
    _, first = np.unique(np.stack([user, tile]), axis=1, return_index=True)
    lake.commit_tiles(tile_rows(rng, view, user[first], time_ms[first]))
    store = open_store(url)
    lake.materializer(store).run_once()
    store.close()
    return len(first) // users


def write_project(folder: Path, url: str) -> None:
    """What our server needs of a project."""
    folder.mkdir()
    (folder / "features.py").write_text(DEFINITIONS)
    (folder / "paimon-features.toml").write_text(
        f'[project]\nname = "{PROJECT}"\n[online]\nurl = "{url}"\n[serve]\ntokens = "tokens.toml"\n'
    )


@contextmanager
def ours(folder: Path, size: Size, workers: int = 1) -> Iterator[Server]:
    """Our server on the project in ``folder``."""
    port = free_ports(1)[0]
    token = secrets.token_urlsafe(32)
    digest = hashlib.sha256(token.encode()).hexdigest()
    (folder / "tokens.toml").write_text(
        f'[[token]]\nname = "bench"\nsha256 = "{digest}"\nservices = ["*"]\n'
    )
    command = [sys.executable, "-c", "from paimon_features.cli import main; main()", "serve"]
    command += ["--port", str(port), "--workers", str(workers), "--project", str(folder)]
    features = load_definitions(folder / "features.py").view("spend").compiled.features
    refs = [f"spend:{f.name}" for f in features]
    with _started(command, folder, port, "/health/ready") as (process, ready_s):
        requests = _requests(refs, size.users, token)
        yield Server("ours", process, port, ready_s, *requests, token)


@contextmanager
def feast(
    python: Path, folder: Path, redis_port: int, size: Size, workers: int = 1
) -> Iterator[Server]:
    """Feast's server, tuned: workers are never recycled, the registry is cached for an hour."""
    if not (folder / "registry.db").exists():
        (folder / "feature_store.yaml").write_text(FEAST_YAML.format(port=redis_port))
        arguments = [python, "-c", FEAST_SETUP, str(size.users), str(NAMES)]
        subprocess.run(arguments, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    port = free_ports(1)[0]
    command = [str(python.parent / "feast"), "serve", "--port", str(port)]
    command += ["--workers", str(workers), "--max-requests", "0", "--max-requests-jitter", "0"]
    command += ["--registry_ttl_sec", "3600", "--metrics"]
    refs = [f"spend:f{i}" for i in range(NAMES)]
    with _started(command, folder, port, "/health") as (process, ready_s):
        yield Server("feast", process, port, ready_s, *_requests(refs, size.users))


def _requests(refs: Sequence[str], users: int, token: str = "") -> tuple[list[bytes], list[bytes]]:
    rng = np.random.default_rng(1)

    def body(count: int) -> bytes:
        requested = rng.integers(0, users, count).tolist()
        return json.dumps({"features": list(refs), "entities": {"user": requested}}).encode()

    path = "/get-online-features"
    single = [post(path, body(1), token=token) for _ in range(2_000)]
    return single, [post(path, body(100), token=token) for _ in range(200)]


@contextmanager
def _started(
    command: Sequence[str], folder: Path, port: int, health: str
) -> Iterator[tuple[subprocess.Popen[bytes], float]]:
    log = folder / "server.log"
    with log.open("ab") as out:
        process = subprocess.Popen(
            command, cwd=folder, stdout=out, stderr=out, start_new_session=True
        )
    try:
        began = time.perf_counter()
        while not _ready(port, health):
            if process.poll() is not None or time.perf_counter() - began > 60:
                raise RuntimeError(f"{command[0]} did not start: {log.read_text()[-2000:]}")
            time.sleep(0.01)
        yield process, time.perf_counter() - began
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _ready(port: int, path: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _children(pid: int) -> list[int]:
    found = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return found + [below for child in found for below in _children(child)]


def check(server: Server, expected: int) -> None:
    """Fail unless the server answers with values, not with refusals."""
    for requests in (server.single, server.many):
        _, _, body = requests[0].partition(b"\r\n\r\n")
        request = urllib.request.Request(
            f"http://127.0.0.1:{server.port}/get-online-features",
            body,
            {"Content-Type": "application/json", "Authorization": f"Bearer {server.token}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                results = json.loads(answer.read())["results"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{server.name}: {error}: {error.read()[:2000]!r}") from error
        assert len(results) == expected + 1
        assert {status for result in results for status in result["statuses"]} == {"PRESENT"}


def in_turn(
    servers: Sequence[Server], rounds: int, measure: Callable[[Server], Measured]
) -> dict[str, list[Measured]]:
    """The same measurement of each server, in turn, ``rounds`` times."""
    found: dict[str, list[Measured]] = {server.name: [] for server in servers}
    for number in range(rounds):
        for server in servers if number % 2 == 0 else servers[::-1]:
            found[server.name].append(measure(server))
    return found


def closed(
    server: Server, requests: Sequence[bytes], seconds: float, connections: int, wrk: Path | None
) -> Measured:
    """Requests as fast as the server answers them, and what they take of its processor."""
    before_s = server.processor_s()
    if wrk is None:
        found = closed_loop(server.port, requests, seconds, connections)
    else:
        found = wrk_loop(wrk, server.port, requests, seconds, connections)
    found.processor_s = server.processor_s() - before_s
    return found


def show(
    what: str, found: dict[str, list[Measured]], value: Callable[[Measured], float], unit: str
) -> None:
    """A line per server, and the median of the ratios of a round to Feast's in the same."""
    for name, rounds in found.items():
        values = sorted(map(value, rounds))
        line = f"  {what:42} {name:8} {median(values):10,.2f} {unit}"
        line += f"  ({values[0]:,.2f} to {values[-1]:,.2f})"
        if name != "feast" and "feast" in found:
            ratios = [value(o) / value(f) for o, f in zip(rounds, found["feast"], strict=True)]
            best = max(map(value, found["feast"]))
            line += f"  {median(ratios):6.2f} x feast ({median(values) / best:.2f} x its best)"
        refused = sum(sum(round_.refused.values()) for round_ in rounds)
        print(line + (f"  refused: {refused}" if refused else ""), flush=True)


def parsed(description: str | None, *flags: str) -> tuple[argparse.Namespace, Size]:
    """The options of a benchmark beside Feast, and what they say of its size."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--feast", type=Path, metavar="PYTHON", help="a Python that has feast 0.67")
    parser.add_argument("--wrk", type=Path, metavar="PROGRAM", help="the generator wrk")
    parser.add_argument("--small", action="store_true", help="a few seconds, to try it")
    parser.add_argument("--rounds", type=int, help="how often each is measured, by default 5")
    parser.add_argument("--seconds", type=float, help="how long each is measured, by default 5 s")
    for flag in flags:
        parser.add_argument(flag, action="store_true")
    options = parser.parse_args()
    size = SMALL if options.small else FULL
    if options.rounds is not None:
        size = replace(size, rounds=options.rounds)
    if options.seconds is not None:
        size = replace(size, seconds=options.seconds)
    return options, size


def main() -> None:
    options, size = parsed(__doc__, "--two-workers")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        socket = folder / "redis.sock"
        redis = stack.enter_context(RedisServer(options={"unixsocket": str(socket)}))
        tiles = fill(folder / "ours", redis.url, size.users)
        write_project(folder / "socket", f"unix://{socket}")
        print(f"{size.users:,} entities of {tiles} tiles each, {NAMES} features")
        run(stack, folder, options.feast, redis.port, size, options.wrk)
        if options.two_workers:
            two_workers(folder, size, "one entity", 64, lambda server: server.single)
            two_workers(folder, size, "100 entities", 16, lambda server: server.many)


def run(
    stack: ExitStack,
    folder: Path,
    python: Path | None,
    redis_port: int,
    size: Size,
    wrk: Path | None,
) -> None:
    """All measurements of one worker."""
    with ExitStack() as one_worker:
        servers = [one_worker.enter_context(ours(folder / "ours", size))]
        if python is not None:
            (folder / "feast").mkdir()
            # not resolved: a virtual environment's interpreter is a link
            at = Path(os.path.abspath(python))
            servers.append(one_worker.enter_context(feast(at, folder / "feast", redis_port, size)))
        for server in servers:
            check(server, NAMES)
            closed_loop(server.port, server.single, 1.0, 8)  # warm
        print(f"  start to ready: {', '.join(f'{s.name} {s.ready_s:.2f} s' for s in servers)}")
        for connections in (1, 16, 32):
            with ExitStack() as beside:
                measured = servers
                if connections == 1:
                    by_socket = beside.enter_context(ours(folder / "socket", size))
                    check(by_socket, NAMES)
                    closed_loop(by_socket.port, by_socket.single, 1.0, 8)
                    measured = [servers[0], replace(by_socket, name="socket"), *servers[1:]]
                single = in_turn(
                    measured,
                    size.rounds,
                    lambda s, count=connections: closed(s, s.single, size.seconds, count, wrk),  # type: ignore[misc]
                )
            what = f"one entity, {connections} connections"
            show(f"requests/s, {what}", single, lambda m: m.per_s, "/s")
            show("  processor time of a request", single, lambda m: m.processor_us, "us")
        slowest = min(median(m.per_s for m in rounds) for rounds in single.values())
        rate = 0.5 * slowest
        paced = in_turn(
            servers, size.rounds, lambda s: open_loop(s.port, s.single, size.seconds, rate)
        )
        show(f"p50 at {rate:,.0f} requests/s", paced, lambda m: m.ms(50), "ms")
        show(f"p99 at {rate:,.0f} requests/s", paced, lambda m: m.ms(99), "ms")
        arrow = replace(servers[0], many=arrow_requests(folder, size, servers[0].token))
        bulk = in_turn(
            [servers[0], replace(arrow, name="arrow"), *servers[1:]],
            size.rounds,
            lambda s: closed(s, s.many, size.seconds, 8, wrk),
        )
        compact = bulk.pop("arrow")
        show("entity rows/s, 100 a request, JSON", bulk, lambda m: 100 * m.per_s, "/s")
        show("  processor time of a request", bulk, lambda m: m.processor_us, "us")
        show(
            "entity rows/s, 100 a request, Arrow",
            bulk | {"ours": compact},
            lambda m: 100 * m.per_s,
            "/s",
        )
        reported = ", ".join(f"{s.name} {s.resident_mb():.0f} MB" for s in servers)
        print(f"  resident memory of a worker, after that: {reported}")


def two_workers(
    folder: Path,
    size: Size,
    name: str,
    connections: int,
    requests_of: Callable[[Server], Sequence[bytes]],
) -> None:
    """Two workers compared with one, in turn."""
    alone: list[float] = []
    both: list[float] = []
    for _ in range(size.rounds):
        for workers, into in ((1, alone), (2, both)):
            with ours(folder / "ours", size, workers) as server:
                requests = requests_of(server)
                closed_loop(server.port, requests, 0.5, connections)
                into.append(closed_loop(server.port, requests, size.seconds, connections).per_s)
    ratio = median(b / a for a, b in zip(alone, both, strict=True))
    print(
        f"  two workers, {name} a request: {median(both):,.0f} requests/s, "
        f"one {median(alone):,.0f}: {ratio:.2f} x, "
        f"on {os.cpu_count()} cores that generator and store share"
    )


def arrow_requests(folder: Path, size: Size, token: str) -> list[bytes]:
    """Requests whose body is an Arrow stream of keys, answered by one."""
    rng = np.random.default_rng(1)
    made = []
    for _ in range(200):
        table = pa.table({"user": rng.integers(0, size.users, 100)})
        out = io.BytesIO()
        with pa.ipc.new_stream(out, table.schema) as writer:
            writer.write_table(table)
        path = "/get-online-features?feature_service=churn_v1"
        made.append(post(path, out.getvalue(), ARROW, ARROW, token))
    return made


if __name__ == "__main__":
    main()
