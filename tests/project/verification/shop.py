"""A project whose events, tiles and store are moved on by hand, one at a time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa

from paimon_features.core.types.schema import arrow_schema
from paimon_features.core.windows import DAY_MS, MAX_TIME_MS, MIN_TIME_MS
from paimon_features.definitions import Definitions, FeatureView
from paimon_features.lake import append_arrow
from paimon_features.lake.specs import EVENT_DAY, INGEST_TIME_MS
from paimon_features.online.materialize import Materializer
from paimon_features.online.store.store import OnlineStore
from paimon_features.project import Project
from paimon_features.serving.request_log.commit import CommitStats, SpoolCommitter
from paimon_features.serving.request_log.log import RequestLog
from paimon_features.serving.request_log.log_rows import log_schema
from paimon_features.serving.request_log.spool import SpoolFile, described_schema, read_spool
from paimon_features.testing.reference.features import Event
from paimon_features.testing.reference.tiler import tile_table

NAME = "shop"


def clock_ms() -> int:
    return time.time_ns() // 1_000_000


class Shop:
    """``commit`` plays ingest and tile job, ``log`` is that of a server."""

    def __init__(self, folder: Path, definitions: Sequence[object], store: OnlineStore) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "paimon-features.toml").write_text(
            f'[project]\nname = "{NAME}"\n[lake]\nwarehouse = "lake"\n'
            '[serve]\nrequest_log = "spool"\n'
        )
        self.project = Project.open(folder)
        self.project.__dict__["definitions"] = Definitions.of(definitions, fitted=folder / "fitted")
        self.project.__dict__["store"] = store
        self.project.apply()
        self.store = store
        self.spool = folder / "spool"
        self.ingested = 0
        self.logged: list[dict[str, Any]] = []

    @property
    def lake(self) -> Any:
        return self.project.lake

    def table(self, view: FeatureView) -> str:
        return self.project.generation(view.compiled).table

    def commit(
        self, view: FeatureView, events: Sequence[Event], *, tiled: int | None = None
    ) -> None:
        """Commit events, and the tiles of the first ``tiled`` (all) of them."""
        source = view.source
        schema = arrow_schema(source.schema)
        rows = [{name: e[name] for name in schema.names} for e in events]
        table = pa.Table.from_pylist(rows, schema)
        days = [
            time_ms // DAY_MS if MIN_TIME_MS <= time_ms < MAX_TIME_MS else 0
            for time_ms in (event[source.event_time] for event in events)
        ]
        times = range(self.ingested, self.ingested + len(events))
        self.ingested += len(events)
        table = table.append_column(EVENT_DAY, pa.array(days, pa.int32()))
        table = table.append_column(INGEST_TIME_MS, pa.array(list(times), pa.int64()))
        append_arrow(self.lake, source.table, table)
        self.tile(view, events[:tiled])

    def tile(self, view: FeatureView, events: Sequence[Event]) -> None:
        """Commit the tiles of events."""
        append_arrow(self.lake, self.table(view), tile_table(view, events))

    def materializer(self, view: FeatureView, **options: Any) -> Materializer:
        options.setdefault("lease_ttl_ms", None)
        record = self.project.generation(view.compiled)
        return Materializer(self.lake, NAME, view.compiled, lambda: record, self.store, **options)

    def log(self, **options: Any) -> RequestLog:
        options = {"rate": 1.0, "flush_interval_s": 0.02, **options}
        return RequestLog(self.spool, NAME, **options)

    def bring(self, **options: Any) -> CommitStats:
        """Commit the spool files."""
        return SpoolCommitter(self.lake, NAME, [self.spool], **options).run_once()

    def rows(self) -> list[dict[str, Any]]:
        """The rows in the spool files."""
        files = sorted(self.spool.glob("*.arrow"))
        return [row for path in files for row in read_spool(path, log_schema()).rows.to_pylist()]

    def write(self, rows: Sequence[dict[str, Any]], stem: str) -> Path:
        """A spool file of these rows."""
        self.spool.mkdir(exist_ok=True)
        file = SpoolFile(self.spool, stem, described_schema(log_schema(), NAME, "w"))
        file.append(pa.RecordBatch.from_pylist(list(rows), log_schema()))
        return file.complete()


def counts(done: CommitStats) -> dict[str, int]:
    """What is not zero."""
    return {f.name: n for f in fields(done) if (n := getattr(done, f.name))}
