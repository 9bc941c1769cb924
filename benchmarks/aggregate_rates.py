"""What lists and sketches cost the tile job: events per second compared with a plain sum.

    python -m benchmarks.aggregate_rates --events 2000000 --repeats 3

One events table (``benchmarks.tile_job``: Zipf keys, the busiest user has a quarter of all events)
goes into the tile tables of several views by the product's own job, in turns in one JVM.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from benchmarks.tile_job import CHECKPOINT_MS, PARALLELISM, VIEW, Turn, make_events, tiles
from paimon_features.core.configuration.project_config import FlinkConfig
from paimon_features.definitions import Definitions, FeatureView
from paimon_features.definitions.aggregates import (
    Aggregate,
    ApproxCountDistinct,
    Kurtosis,
    LastN,
    Sum,
    TopCategories,
)
from paimon_features.lake import Lake, latest_snapshot
from paimon_features.lake.reading.deltas import live_files
from paimon_features.project.planning.plan import apply_plan
from paimon_features.tiles.jobs.target import TileTarget

CONTENDERS: dict[str, Aggregate] = {
    "sum": Sum("amount", windows=["1h"], scale=2),
    "distinct": ApproxCountDistinct("amount", windows=["1h"]),
    "last_n": LastN("amount", n=10, windows=["1h"]),
    "top_categories": TopCategories("user_id", windows=["1h"]),
    "kurtosis": Kurtosis("amount", windows=["1h"], scale=2),
}


def view_of(name: str) -> FeatureView:
    return FeatureView(name, source=VIEW.source, entity=VIEW.entity, features=[CONTENDERS[name]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=list(CONTENDERS), choices=list(CONTENDERS))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake.open(Path(folder) / "lake", "bench")
        targets = {}
        for name in arguments.only:
            view = view_of(name)
            apply_plan(lake, Definitions.of([view]), now_ms=0)
            flink = FlinkConfig(PARALLELISM, CHECKPOINT_MS)
            targets[name] = TileTarget(
                "bench", lake, view.compiled, 1, Path(folder) / "state", flink
            )
        make_events(lake, arguments.events)
        turns: dict[str, list[Turn]] = {name: [] for name in targets}
        for number in range(arguments.repeats + 1):
            for name, target in targets.items():
                turn = tiles(target, arguments.events)
                print(f"  turn {number} {name:15} {turn.rate:10,.0f} events/s", flush=True)
                if number:
                    turns[name].append(turn)
        sizes = {}
        for name, target in targets.items():
            newest = latest_snapshot(lake, target.tables[0])
            assert newest is not None
            files = live_files(lake, target.tables[0], newest.id)
            sizes[name] = sum(file.size for file in files) / arguments.events
    plain = turns[arguments.only[0]]
    for name, side in turns.items():
        rate = statistics.median(turn.rate for turn in side)
        cpu = statistics.median(arguments.events / turn.cpu_s for turn in side)
        ratio = statistics.median(a.rate / b.rate for a, b in zip(side, plain, strict=True))
        print(
            f"{name:15} {rate:10,.0f} events/s, {ratio:.2f} of {arguments.only[0]}; "
            f"{cpu:10,.0f} events/s of processor time; {sizes[name]:.1f} bytes an event"
        )


if __name__ == "__main__":
    main()
