"""Paths through the matrix that need neither Java nor a server: tiles, the lake, the online store.

Each takes a cell and returns the results for ``matrix.wrong``. Another engine for tiles is
compared by passing its tiles to ``from_tiles``.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa

from paimon_features.core.errors import OnlineStoreError, RequestError, SkippedEventsWarning
from paimon_features.core.times.clock import now_ms
from paimon_features.core.types.schema import arrow_schema
from paimon_features.core.types.statuses import STATUS_NAMES
from paimon_features.core.windows import DAY_MS
from paimon_features.definitions import CompiledView, FeatureRef, FeatureView
from paimon_features.lake import Lake, append_arrow
from paimon_features.lake.duckdb_engine import DuckDBEngine
from paimon_features.lake.side_folder.generations import GenerationRecord
from paimon_features.lake.specs import events_spec, tiles_spec
from paimon_features.offline.joins.point_in_time import PointInTimeJoin
from paimon_features.offline.local.features import features as local_features
from paimon_features.offline.reading.engine import OfflineEngine
from paimon_features.offline.store import OfflineStore
from paimon_features.online.materialize import Materializer
from paimon_features.online.store.memory_store import MemoryStore
from paimon_features.online.store.store import OnlineStore
from paimon_features.serving.reading.fetcher import FeatureFetcher
from paimon_features.testing.reference.features import Event
from paimon_features.testing.reference.tiler import event_rows, tile_table
from paimon_features.tiles.local.tiling import tile_rows, tile_sql
from tests.matrix import Cell, Given, Question

PROJECT = "matrix"
BUCKETS = 2


def events_table(view: FeatureView, events: Sequence[Event]) -> pa.Table:
    """Events as in the events table, without its own columns."""
    return pa.Table.from_pylist(list(events), schema=arrow_schema(view.source.schema))


def all_events(cell: Cell) -> pa.Table:
    """All events of a cell."""
    return events_table(cell.view, [event for batch in cell.batches for event in batch])


def from_tiles(cell: Cell, tiles: pa.Table, questions: Sequence[Question]) -> list[Given]:
    """The point-in-time join over these tiles, and the cell's raw events at the edges."""
    view = cell.view.compiled
    keys = pa.table({"user": [question.user for question in questions]})
    as_of_ms = np.array([question.as_of_ms for question in questions], np.int64)
    join = PointInTimeJoin(view, view.features, keys, as_of_ms)
    events = all_events(cell)
    days = pa.array(np.isin(events["t"].to_numpy() // DAY_MS, join.edge_days))
    join.add_events(events.filter(days).select(join.event_columns))
    join.join_tiles([tiles.select(join.tile_columns)])
    results = join.results()
    columns = {f.name: results.columns[f.name].to_arrow(f.type.arrow) for f in view.features}
    values = event_rows(pa.table(columns))
    statuses = [
        {name: STATUS_NAMES[of_feature[i]] for name, of_feature in results.statuses.items()}
        for i in range(len(questions))
    ]
    return list(zip(values, statuses, strict=True))


def from_events(cell: Cell, questions: Sequence[Question]) -> list[Given]:
    """Features from the raw events, each of which is a tile of its own."""
    rows = {
        "user": [question.user for question in questions],
        "event_time_ms": [question.as_of_ms for question in questions],
    }
    with warnings.catch_warnings():
        # what is skipped is part of what is compared
        warnings.simplefilter("ignore", SkippedEventsWarning)
        found = local_features(cell.view, all_events(cell), rows, statuses=True)
    return _given(cell, found)


def duckdb_tiles(cell: Cell, engine: DuckDBEngine) -> pa.Table:
    """Return the cell's tiles, computed by the local engine."""
    return _duckdb_tiles(replace(cell, kind="exact"), engine)


@lru_cache(maxsize=64)
def _duckdb_tiles(cell: Cell, engine: DuckDBEngine) -> pa.Table:
    engine.add("matrix_events", all_events(cell))
    view = cell.view.compiled
    found = engine.table(tile_sql(view, "matrix_events"), "tiles").combine_chunks().to_batches()
    return pa.Table.from_batches([tile_rows(view, batch) for batch in found])


def reference_tiles(cell: Cell) -> pa.Table:
    """Return the cell's tiles, computed event by event."""
    return _tiles(replace(cell, kind="exact"))  # equal for all kinds


@lru_cache(maxsize=64)
def _tiles(cell: Cell) -> pa.Table:
    return tile_table(cell.view, [event for batch in cell.batches for event in batch])


class MatrixLake:
    """A real lake with the events of one cell, and the tiles for all kinds over them.

    ``between`` are times between the commits: at ``between[i]``, ``i`` batches were there.
    """

    def __init__(self, folder: Path, cell: Cell) -> None:
        self.lake = Lake.open(folder, "features")
        source, view = cell.view.source, cell.view.compiled
        partials = [(p.name, p.type, p.merge.paimon) for p in view.partials]
        self.lake.create(events_spec(source.table, source.schema))
        self.lake.create(tiles_spec(view.table(1), view.keys, partials, BUCKETS))
        self.between: list[int] = [_now_between()]
        for batch in cell.batches:
            events = events_table(cell.view, batch)
            days = pa.array((events["t"].to_numpy() // DAY_MS).astype(np.int32))
            append_arrow(self.lake, source.table, events.append_column("event_day", days))
            append_arrow(self.lake, view.table(1), tile_table(cell.view, batch))
            self.between.append(_now_between())

    def record(self, view: CompiledView) -> GenerationRecord:
        """The only generation."""
        return GenerationRecord(
            view.name, 1, view.table(1), view.fingerprint, BUCKETS, state="active"
        )

    def as_of(
        self,
        cell: Cell,
        questions: Sequence[Question],
        batches: int,
        engine: OfflineEngine | None = None,
    ) -> list[Given]:
        """Read the lake as of the commit of that many batches."""
        view = cell.view.compiled
        store = OfflineStore(self.lake, lambda _: view, self.record)
        rows = pa.table(
            {
                "user": [question.user for question in questions],
                "event_time_ms": [question.as_of_ms for question in questions],
            }
        )
        refs = [FeatureRef(view.name, f.name) for f in view.features]
        table = store.get_historical_features(
            refs, rows, as_of=self.between[batches], statuses=True, engine=engine
        )
        return _given(cell, table)

    def online(
        self, cell: Cell, questions: Sequence[Question], store: OnlineStore | None = None
    ) -> tuple[list[Question], list[Given]]:
        """Return the results of an online store, and the requests that it did not reject.

        A rejection must be correct: the request is too far before the newest event.
        """
        view = cell.view.compiled
        store = MemoryStore() if store is None else store
        worker = Materializer(
            self.lake, PROJECT, view, lambda: self.record(view), store, lease_ttl_ms=None
        )
        assert worker.run_once().caught_up
        fetcher = FeatureFetcher(PROJECT, [view], store)
        refs = [FeatureRef(view.name, f.name) for f in view.features]
        newest = max(event["t"] for batch in cell.batches for event in batch)
        result: list[Question] = []
        given: list[Given] = []
        for question in questions:
            try:
                got = fetcher.get(refs, {"user": [question.user]}, question.as_of_ms)
            except (RequestError, OnlineStoreError):  # the latter: events after this clock
                assert question.as_of_ms < newest - view.margin_ms, question
                continue
            result.append(question)
            values = event_rows(got.table.select(got.features))[0]
            given.append((values, got.statuses.to_pylist()[0]))
        return result, given


def _given(cell: Cell, table: pa.Table) -> list[Given]:
    """Rows of features with a column ``<feature>__status`` each."""
    names = [feature.name for feature in cell.view.compiled.features]
    statuses = [
        {name.removesuffix("__status"): status for name, status in row.items()}
        for row in table.select([f"{name}__status" for name in names]).to_pylist()
    ]
    return list(zip(event_rows(table.select(names)), statuses, strict=True))


def _now_between() -> int:
    """The clock, with no commit in the same millisecond."""
    time.sleep(0.002)
    current_ms = now_ms()
    time.sleep(0.002)
    return current_ms
