"""How many requests an object store gets for a commit, an ingest, a rebuild of the online store.

    python -m benchmarks.object_store_requests

Requests are counted by a real S3 server (moto) in this process, by Amazon's two price classes: PUT,
COPY, POST and LIST; GET and all others. DELETE is free of charge.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import pyarrow as pa

import paimon_features as pf
from paimon_features.definitions import Definitions
from paimon_features.lake import EventWriter, Lake, append_arrow
from paimon_features.lake.ownership import lease
from paimon_features.lake.side_folder import generations
from paimon_features.online.materialize import Materializer
from paimon_features.online.store import MemoryStore
from paimon_features.project.planning.plan import apply_plan
from tests.servers.object_store import ObjectStore, object_store

PRICES = {"put": 0.005, "get": 0.0004}
"""Dollars for 1,000 requests: Amazon S3 Standard, us-east-1, November 2025."""


def classes(store: ObjectStore) -> dict[str, int]:
    """The requests since the last call by price class."""
    found = {"put": 0, "get": 0, "delete": 0}
    for method, path, _ in store.requests:
        listing = method == "GET" and path.count("/") == 1  # of the bucket
        kind = "put" if method in ("PUT", "POST") or listing else method.lower()
        found[kind if kind in found else "get"] += 1
    store.requests.clear()
    return found


def main() -> None:
    """Print one line per operation."""
    retail = pf.EventSource(
        "retail", schema={"customer_id": pf.Int64, "amount": pf.Int64, "at_ms": pf.Int64},
        event_time="at_ms",
    )  # fmt: skip
    view = pf.FeatureView(
        "spend", source=retail, entity=pf.Entity("customer", keys={"customer_id": pf.Int64}),
        features=[pf.Sum("amount", windows=["1d"], bound=1000)],
    )  # fmt: skip
    day = 86_400_000
    events = pa.table({"customer_id": [1, 2], "amount": [3, 4], "at_ms": [15_000 * day] * 2})
    with object_store("bucket") as store:
        lake = Lake.open("s3://bucket/lake", "features", options=store.options)
        print(f"{'operation':50} {'PUT+LIST':>9} {'GET':>6} {'DELETE':>7} {'$ per 1,000':>12}")

        def count(what: str, work: Callable[[], object]) -> None:
            store.requests.clear()
            work()
            found = classes(store)
            dollars = sum(found[kind] * PRICES[kind] for kind in PRICES)
            print(
                f"{what:50} {found['put']:9} {found['get']:6} {found['delete']:7} {dollars:12.3f}"
            )

        count("apply one view", lambda: apply_plan(lake, Definitions.of([view]), now_ms=0))
        writer = EventWriter.of(lake, retail, lambda: 15_000 * day)
        count("first ingest of a process (tests the store)", lambda: writer.write(events))
        count("ingest from Python, one file", lambda: writer.write(events))
        held = lease.acquire(lake, "events_retail")
        count("the same, by the owner of the table", lambda: writer.write(events))
        held.release()

        def own() -> None:
            with lease.acquire(lake, "events_retail"):
                pass

        count("acquire and release a lease", own)
        record = generations.load(lake, "spend")[0]
        tile = {"tile_day": [15_000], "customer_id": [1], "tile_start": [15_000 * day]}
        schema = lake.schema(record.table)
        partials = {n: [1] for n in schema.names if n not in tile}
        rows = pa.table({**tile, **partials}).select(schema.names).cast(schema)
        append_arrow(lake, record.table, rows)
        generations.activate(lake, "spend", 1)
        store_of = MemoryStore()
        compiled = view.compiled

        def materialize() -> None:
            active = generations.active(lake, "spend")
            assert active is not None
            materializer = Materializer(
                lake, "shop", compiled, lambda: active, store_of, lease_ttl_ms=None
            )
            materializer.run_once()

        count("rebuild the online store, one data file", materialize)
        for _ in range(9):
            append_arrow(lake, record.table, rows)
        count("follow nine more commits, one data file each", materialize)


if __name__ == "__main__":
    sys.exit(main())
