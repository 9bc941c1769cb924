"""Ten years of tiles: lifetime features, and an online rebuild, with and without rollups.

Entities have a tile every five minutes of some hours of each day. The same rows are read from the
same snapshot before and after ``roll_up``; the answers have to be equal.

    python -m benchmarks.rollup --entities 10 --tiles-a-day 48
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from paimon_features.core.columns.column import Column
from paimon_features.core.types.schema import Float64, Int64
from paimon_features.core.windows import DAY_MS, HOUR_MS, MINUTE_MS
from paimon_features.definitions import Entity, EventSource, FeatureRef, FeatureView
from paimon_features.definitions.aggregates import Count, Max, Mean, Sum
from paimon_features.definitions.event_partials import partials_of
from paimon_features.lake import Lake
from paimon_features.lake.side_folder.generations import GenerationRecord
from paimon_features.lake.specs import TILE_DAY, events_spec, tiles_spec
from paimon_features.lake.table_folders import rollup_folder
from paimon_features.lake.writing.sorted_files import SortedFiles
from paimon_features.offline.reading.view_scan import ViewScan
from paimon_features.offline.rollup import roll_up
from paimon_features.offline.store import OfflineStore
from paimon_features.online.materialize import Materializer
from paimon_features.online.store import MemoryStore

BEGIN_DAY = 15_000
BUCKETS = 1
SOURCE = EventSource("sales", schema={"user": Int64, "t": Int64, "x": Float64}, event_time="t")
VIEW = FeatureView(
    "totals",
    source=SOURCE,
    entity=Entity("user", keys={"user": Int64}),
    features=[
        Sum("x", windows=[None, "30d"], scale=2),
        Mean("x", windows=[None], scale=2),
        Max("x", windows=[None]),
        Count(windows=[None]),
    ],
)


def write_tiles(lake: Lake, days: int, entities: int, tiles_a_day: int) -> int:
    """A tile for each entity every five minutes of a part of each day, in one commit."""
    view = VIEW.compiled
    table = view.table(1)
    partials = [(p.name, p.type, p.merge.paimon) for p in view.partials]
    lake.create(events_spec(SOURCE.table, SOURCE.schema))
    lake.create(tiles_spec(table, view.keys, partials, BUCKETS))
    schema = lake.schema(table)
    users = np.repeat(np.arange(entities), tiles_a_day)
    offsets = np.tile(np.arange(tiles_a_day) * 5 * MINUTE_MS, entities)
    dice = np.random.default_rng(0)
    with SortedFiles(lake, table, dict(view.keys), TILE_DAY) as files:
        for day in range(BEGIN_DAY, BEGIN_DAY + days):
            starts = day * DAY_MS + offsets
            times = starts + 1000
            events = {
                "user": Column(users),
                "t": Column(times),
                "x": Column(np.round(dice.random(len(users)) * 100, 2)),
            }
            made = partials_of(view, view.partials, events, times)
            arrays = {
                "tile_day": pa.array(np.full(len(users), day, np.int32)),
                "user": users,
                "tile_start": starts,
                **{p.name: made[p.name].to_arrow(p.type.arrow) for p in view.partials},
            }
            files.write(pa.table(arrays).cast(schema).combine_chunks().to_batches()[0])
        files.commit("benchmark")
        return files.rows


def read(store: OfflineStore, rows: pa.Table) -> tuple[float, int, int, int, pa.Table]:
    """Seconds (the best of two), files, rows and bytes of tiles, and the answers."""
    refs = [FeatureRef(VIEW.name, f.name) for f in VIEW.compiled.features]
    best = float("inf")
    for _ in range(2):
        began = time.perf_counter()
        answers = store.get_historical_features(refs, rows)
        best = min(best, time.perf_counter() - began)
    (one,) = store.pin(refs).reads
    needs = one.needs()
    as_of_ms = rows["event_time_ms"].to_numpy()
    needs.observe(as_of_ms, np.zeros(len(as_of_ms), np.int64))
    files = ViewScan(store.lake, one, needs, range(BUCKETS)).tile_files
    return best, len(files), sum(f.rows for f in files), sum(f.size for f in files), answers


def rebuild_s(lake: Lake, record: GenerationRecord) -> float:
    """Seconds to build an empty online store (in memory)."""
    worker = Materializer(
        lake, "bench", VIEW.compiled, lambda: record, MemoryStore(), lease_ttl_ms=None
    )
    began = time.perf_counter()
    assert worker.run_once().caught_up
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--days", type=int, default=3_650)
    parser.add_argument("--entities", type=int, default=10)
    parser.add_argument("--tiles-a-day", type=int, default=48, help="of 288, for each entity")
    arguments = parser.parse_args()
    view, days, entities = VIEW.compiled, arguments.days, arguments.entities
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake.open(Path(folder), "features")
        count = write_tiles(lake, days, entities, arguments.tiles_a_day)
        record = GenerationRecord(view.name, 1, view.table(1), view.fingerprint, BUCKETS)
        store = OfflineStore(lake, lambda _: view, lambda _: record)
        end_ms = (BEGIN_DAY + days) * DAY_MS
        months = np.array([end_ms - 30 * DAY_MS * month for month in range(60)])
        requested = {
            "now": np.array([end_ms - 9 * HOUR_MS - 1]),
            "60 midnights in 5 years": months,
            "60 noons in 5 years": months - 12 * HOUR_MS,
        }
        tables = {
            name: pa.table(
                {
                    "user": np.tile(np.arange(entities), len(times)),
                    "event_time_ms": np.repeat(times, entities),
                }
            )
            for name, times in requested.items()
        }
        print(
            f"{count:,} tiles of {entities} entities in {days:,} days, {BUCKETS} bucket", flush=True
        )
        before = {name: read(store, rows) for name, rows in tables.items()}
        built = rebuild_s(lake, record)
        began = time.perf_counter()
        done = roll_up(lake, view, record, end_ms + DAY_MS)
        print(f"roll_up: {time.perf_counter() - began:.1f} s: {done}")
        began = time.perf_counter()
        roll_up(lake, view, record, end_ms + DAY_MS)
        print(f"roll_up again: {time.perf_counter() - began:.2f} s")
        size = sum(
            os.path.getsize(os.path.join(at, name))
            for at, _, names in os.walk(rollup_folder(lake, record.table))
            for name in names
        )
        print(f"rollups on disk: {size / 2**20:.1f} MiB")
        print(f"{'':28} {'s':>7} {'files':>7} {'tiles':>10} {'MiB':>7}")
        for name, rows in tables.items():
            after = read(store, rows)
            assert after[-1] == before[name][-1], name
            for label, reported in (("tiles", before[name]), ("rollups", after)):
                seconds, files, tiles, size, _ = reported
                print(
                    f"{name + ', ' + label:34} {seconds:7.3f} {files:7,} {tiles:10,} "
                    f"{size / 2**20:7.2f}"
                )
            print(f"{'':28} ratio {before[name][0] / after[0]:.1f}")
        again = rebuild_s(lake, record)
        print(f"rebuild: {built:.2f} s from tiles, {again:.2f} s: ratio {built / again:.1f}")


if __name__ == "__main__":
    main()
