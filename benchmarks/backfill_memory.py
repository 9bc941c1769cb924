"""Memory of a local backfill of a hundred features.

    python -m benchmarks.backfill_memory --events 200000

Ten columns, ten aggregates of each, hardly two events in a tile: with ``--kind numbers`` sums,
counts and extremes, with ``lists`` a list and a sketch of each column among them.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from paimon_features.core.configuration.project_config import FlinkConfig
from paimon_features.core.types.schema import Float64, Int64
from paimon_features.core.windows import DAY_MS
from paimon_features.definitions import Definitions, Entity, EventSource, FeatureView
from paimon_features.definitions.aggregates import (
    Aggregate,
    ApproxCountDistinct,
    Count,
    First,
    Last,
    LastN,
    Max,
    Mean,
    Min,
    StdDev,
    Sum,
)
from paimon_features.lake import Lake, append_arrow
from paimon_features.lake.specs import EVENT_DAY, INGEST_TIME_MS
from paimon_features.project.planning.plan import apply_plan
from paimon_features.tiles.jobs.target import TileTarget
from paimon_features.tiles.local.submission import backfill

COLUMNS = [f"c{number}" for number in range(10)]
SOURCE = EventSource(
    "measured",
    schema={"user": Int64, "at_ms": Int64, **dict.fromkeys(COLUMNS, Float64)},
    event_time="at_ms",
)


def view_of(kind: str) -> FeatureView:
    """A hundred features; ``kind`` is ``numbers`` or ``lists``."""
    features: list[Aggregate] = []
    window: Any = {"windows": ["1h"]}
    for column in COLUMNS:
        plain = (Count, Sum, Mean, Min, Max, StdDev, First, Last)
        features += [aggregate(column, **window) for aggregate in plain]
        if kind == "lists":
            features += [LastN(column, n=10, **window), ApproxCountDistinct(column, **window)]
        else:
            where = {"where": f"{column} > 0.5", **window}
            features += [
                Sum(column, name=f"some_{column}", **where),
                Count(column, name=f"number_{column}", **where),
            ]
    entity = Entity("user", keys={"user": Int64})
    return FeatureView("measures", source=SOURCE, entity=entity, features=features)


def peak_mib() -> int:
    """The most memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--kind", choices=("numbers", "lists"), default="lists")
    arguments = parser.parse_args()
    view, n = view_of(arguments.kind), arguments.events
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake.open(Path(folder) / "lake", "bench")
        apply_plan(lake, Definitions.of([view]), now_ms=0)
        rng = np.random.default_rng(0)
        at_ms = 15_000 * DAY_MS + np.sort(rng.integers(0, DAY_MS, n))
        values = {column: rng.random(n) for column in COLUMNS}
        append_arrow(
            lake,
            SOURCE.table,
            pa.table(
                {
                    "user": rng.integers(0, max(n // 10, 1), n),
                    "at_ms": at_ms,
                    **values,
                    EVENT_DAY: (at_ms // DAY_MS).astype(np.int32),
                    INGEST_TIME_MS: at_ms,
                }
            ),
        )
        state = Path(folder) / "state"
        target = TileTarget("bench", lake, view.compiled, 1, state, FlinkConfig(2, 1_000))
        before, used = peak_mib(), time.process_time()
        backfill(target)
        used = time.process_time() - used
    print(
        f"{arguments.kind}: {len(view.compiled.partials)} partials, {n:,} events; "
        f"{peak_mib():,} MiB at most ({before:,} before), {used:.1f} s of processor time"
    )


if __name__ == "__main__":
    main()
