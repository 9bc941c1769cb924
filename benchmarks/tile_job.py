"""The tile job compared with Flink's own windows: events per second, from the events table on.

    python -m benchmarks.tile_job --events 5000000 --repeats 5

Both jobs read the same Paimon table of events with Zipf keys, at the same parallelism and with
a checkpoint a second, and take turns in one JVM. ``tiles`` is the product's job (``submit
--bounded``): one row of partials per event, merged and committed to the tile table. ``tumble`` is
one ``TUMBLE`` of the same aggregates over the same expressions into a blackhole: it neither keeps
nor commits anything, and drops what is late. Rows that may not enter are counted by ``tiles``
alone.

Steady state is what comes behind the first tenth of the events: until the last row has been
read by ``tumble``, and until the last row has been committed by ``tiles``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from paimon_features.core.configuration.project_config import FlinkConfig
from paimon_features.core.errors import JobError
from paimon_features.core.process.flink_rest import FlinkRest
from paimon_features.core.types.schema import Float64, Int64
from paimon_features.core.windows import DAY_MS, HOUR_MS, MINUTE_MS
from paimon_features.definitions import Definitions, Entity, EventSource, FeatureView
from paimon_features.definitions.aggregates import Count, Max, Min, Sum
from paimon_features.lake import Lake, append_arrow, latest_snapshot, read_arrow, snapshots
from paimon_features.lake.ddl import literal, quote
from paimon_features.lake.specs import EVENT_DAY, INGEST_TIME_MS
from paimon_features.project.planning.plan import apply_plan
from paimon_features.tiles.flink.submission import submit
from paimon_features.tiles.flink.tiling import DISCOVERY_MS, event_sql
from paimon_features.tiles.jobs.target import TileTarget
from tests.servers.online_servers import free_ports

START_MS = 15_000 * DAY_MS - 3 * HOUR_MS
SPAN_MS = 6 * HOUR_MS
USERS = 100_000
COMMITS = 25
CHECKPOINT_MS = 1_000
PARALLELISM = 2
WARM_UP = 0.1

VIEW = FeatureView(
    "purchases",
    source=EventSource(
        "purchases",
        schema={"user_id": Int64, "amount": Float64, "at_ms": Int64},
        event_time="at_ms",
    ),
    entity=Entity("user", keys={"user_id": Int64}),
    features=[
        Count(windows=["1h"]),
        Sum("amount", windows=["1h", "1d"], scale=2),
        Min("amount", windows=["1h"]),
        Max("amount", windows=["1h"]),
    ],
)


@dataclass(frozen=True, slots=True)
class Turn:
    """Events per second in steady state, seconds of the whole job and of processor time."""

    rate: float
    seconds: float
    cpu_s: float


def make_events(lake: Lake, rows: int) -> None:
    """Events in the order of their time, with Zipf keys, in ``COMMITS`` commits."""
    rng = np.random.default_rng(0)
    size = -(-rows // COMMITS)
    for first in range(0, rows, size):
        n = min(size, rows - first)
        at_ms = START_MS + (np.arange(first, first + n) * SPAN_MS) // rows
        append_arrow(
            lake,
            VIEW.source.table,
            pa.table(
                {
                    "user_id": rng.zipf(1.3, n) * 2_654_435_761 % USERS,
                    "amount": np.round(rng.gamma(2.0, 20.0, n), 2),
                    "at_ms": at_ms,
                    EVENT_DAY: (at_ms // DAY_MS).astype(np.int32),
                    INGEST_TIME_MS: at_ms,
                }
            ),
        )


# -- the two jobs ------------------------------------------------------------------------------


def tiles(target: TileTarget, rows: int) -> Turn:
    """The product's job, from an empty generation until everything is committed."""
    with ThreadPoolExecutor(1) as pool:
        started, cpu = time.time(), jvm_cpu_s(target.state_dir)
        before = target.record().job
        job = pool.submit(submit, target, bounded=True, rebuild=True)
        while (record := target.record()).job in (None, before) and not job.done():
            time.sleep(0.01)
        if job.done():
            job.result()
        assert record.job is not None
        rest, job_id = FlinkRest(record.job["rest"]), record.job["job_id"]
        warm = _time_of(rest, job_id, int(rows * WARM_UP))
        job.result()
    # the run ends with an empty commit; the last one with rows holds the last event
    ended = max(s.time_ms for s in snapshots(target.lake, target.tables[0]) if s.delta_records)
    _check(target, rows)
    return Turn(
        rows * (1 - WARM_UP) / (ended / 1_000 - warm),
        ended / 1_000 - started,
        jvm_cpu_s(target.state_dir) - cpu,
    )


def tumble(target: TileTarget, rows: int) -> Turn:
    """Flink's window over the same source, the same aggregates, into a blackhole."""
    from paimon_features.flink.environment import open_environment, register_lake

    port = free_ports(1)[0]
    started, cpu = time.time(), jvm_cpu_s(target.state_dir)
    env = open_environment(
        "streaming",
        PARALLELISM,
        {
            "execution.checkpointing.interval": f"{CHECKPOINT_MS} ms",
            "execution.checkpointing.dir": (target.state_dir / "tumble").as_uri(),
            "state.backend.type": "hashmap",
            "rest.address": "127.0.0.1",
            "rest.port": str(port),
            "rest.bind-port": str(port),
            "web.refresh-interval": "200",
            "metrics.fetcher.update-interval": "200",
        },
        state_dir=target.state_dir,
    )
    register_lake(env, target.lake)
    for statement in tumble_sql(target):
        result = env.execute_sql(statement)
    client = result.get_job_client()
    assert client is not None
    rest, job_id = FlinkRest(f"127.0.0.1:{port}"), str(client.get_job_id())
    try:
        warm = _time_of(rest, job_id, int(rows * WARM_UP))
        ended = _time_of(rest, job_id, rows)
    finally:
        client.cancel().result()
        _until_gone(rest)
    return Turn(
        rows * (1 - WARM_UP) / (ended - warm), ended - started, jvm_cpu_s(target.state_dir) - cpu
    )


def tumble_sql(target: TileTarget) -> tuple[str, str, str]:
    """The source with a watermark, the sink, and the window."""
    view, snapshot = target.view, latest_snapshot(target.lake, target.events)
    assert snapshot is not None
    keys = ", ".join(map(quote, view.keys))
    merged = [
        f"{p.merge.paimon.upper()}({event_sql(view, view.expressions[p.name])}) AS {quote(p.name)}"
        for p in view.partials
    ]
    types = "".join(f", {quote(p.name)} {p.type.flink}" for p in view.partials)
    source = (
        "CREATE TEMPORARY TABLE `default_catalog`.`default_database`.`timed` ("
        "`user_id` BIGINT, `amount` DOUBLE, `at_ms` BIGINT, `event_day` INT, "
        "`ingest_time_ms` BIGINT, `at` AS TO_TIMESTAMP_LTZ(`at_ms`, 3), "
        "WATERMARK FOR `at` AS `at` - INTERVAL '10' SECOND) PARTITIONED BY (`event_day`) WITH ("
        f"'connector' = 'paimon', 'path' = {literal(str(target.lake.path(target.events)))}, "
        f"'scan.mode' = 'from-snapshot-full', 'scan.snapshot-id' = '{snapshot.id}', "
        f"'continuous.discovery-interval' = '{DISCOVERY_MS} ms')"
    )
    sink = (
        "CREATE TEMPORARY TABLE `default_catalog`.`default_database`.`nowhere` "
        f"(`user_id` BIGINT, `tile_start` TIMESTAMP(3){types}) WITH ('connector' = 'blackhole')"
    )
    query = (
        "INSERT INTO `default_catalog`.`default_database`.`nowhere` "
        f"SELECT {keys}, `window_start`, {', '.join(merged)} FROM TUMBLE("
        "TABLE `default_catalog`.`default_database`.`timed`, DESCRIPTOR(`at`), "
        f"INTERVAL '{view.tile_ms // MINUTE_MS}' MINUTES) "
        f"GROUP BY {keys}, `window_start`, `window_end`"
    )
    return source, sink, query


# -- measuring ---------------------------------------------------------------------------------


def _time_of(rest: FlinkRest, job_id: str, rows: int) -> float:
    """When the job's sources have read so many rows, seconds since 1970, between two polls."""
    deadline = time.monotonic() + 600
    at, seen = time.time(), 0
    while time.monotonic() < deadline:
        try:
            now, found = time.time(), rest.source_records(job_id)
        except JobError:
            found = seen  # its cluster is on its way
        if found >= rows:
            share = (rows - seen) / (found - seen) if found > seen else 1.0
            return at + share * (now - at)
        if found > seen:
            at, seen = now, found
        time.sleep(0.05)
    raise JobError(f"job {job_id} has read {seen:,} of {rows:,} rows in ten minutes")


def _check(target: TileTarget, rows: int) -> None:
    found = sum(read_arrow(target.lake, target.tables[0], ["p_rows"])["p_rows"].to_pylist())
    assert found == rows, f"the tiles hold {found:,} events, not {rows:,}"


def jvm_cpu_s(state_dir: Path) -> float:
    """Seconds of processor time of this process's JVM, which is started if there is none."""
    from paimon_features.flink.gateway import start_gateway

    pid = start_gateway(state_dir).pid
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _until_gone(rest: FlinkRest) -> None:
    """A local cluster ends a moment after its job; the next turn should not meet it."""
    deadline = time.monotonic() + 30
    while rest.alive() and time.monotonic() < deadline:
        time.sleep(0.05)


def measure(target: TileTarget, rows: int, repeats: int) -> dict[str, list[Turn]]:
    """Both jobs in turns; the first turn of each warms up and is dropped."""
    contenders: dict[str, Callable[[TileTarget, int], Turn]] = {"tiles": tiles, "tumble": tumble}
    turns: dict[str, list[Turn]] = {name: [] for name in contenders}
    for number in range(repeats + 1):
        for name, run in contenders.items():
            turn = run(target, rows)
            print(
                f"  turn {number} {name:6} {turn.rate:10,.0f} events/s "
                f"({turn.seconds:.1f} s, {turn.cpu_s:.1f} s of processor)",
                flush=True,
            )
            if number:
                turns[name].append(turn)
    return turns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--events", type=int, default=5_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake.open(Path(folder) / "lake", "bench")
        apply_plan(lake, Definitions.of([VIEW]), now_ms=0)
        make_events(lake, arguments.events)
        flink = FlinkConfig(PARALLELISM, CHECKPOINT_MS)
        target = TileTarget("bench", lake, VIEW.compiled, 1, Path(folder) / "state", flink)
        turns = measure(target, arguments.events, arguments.repeats)
        merged = read_arrow(lake, target.tables[0], ["p_rows"]).num_rows
    print(f"{arguments.events:,} events are {merged:,} tiles")
    for name, side in turns.items():
        rate = statistics.median(turn.rate for turn in side)
        cpu = statistics.median(arguments.events / turn.cpu_s for turn in side)
        print(f"{name:6} {rate:10,.0f} events/s {cpu:10,.0f} events/s of processor time")
    ratios = [a.rate / b.rate for a, b in zip(turns["tiles"], turns["tumble"], strict=True)]
    spread = ", ".join(f"{ratio:.2f}" for ratio in sorted(ratios))
    print(f"tiles / tumble: median {statistics.median(ratios):.2f} of {spread}")


if __name__ == "__main__":
    main()
