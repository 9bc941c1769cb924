"""Every way to read all rows of a table at its newest snapshot, or those of a condition."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core import errors
from paimon_features.core.types.schema import Float64, Int64, String
from paimon_features.lake import append_arrow, latest_snapshot, read_arrow
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata.tags import create_tag
from paimon_features.lake.reading.deltas import live_files, read_file
from paimon_features.lake.specs import events_spec, tiles_spec
from trainer_bridge import SnapshotReader
from trainer_bridge.blocks.open_layout import read_layout
from trainer_bridge.dataframe.frame_sources import LakeSource
from trainer_bridge.streams.following_reader import FollowingReader

polars: Any = pytest.importorskip("polars", reason="pip install 'paimon-features[polars]'")
duckdb = pytest.importorskip("duckdb", reason="pip install 'paimon-features[local]'")

from trainer_bridge.adapters.duckdb import relation  # noqa: E402
from trainer_bridge.adapters.polars import scan  # noqa: E402

EVENTS, TILES = "events_retail", "tiles_spend_g1"
ROWS = 300
WHOLE: dict[str, Any] = {"shuffle": False, "threads": 0, "drop_last": False}
OUR_ERROR = re.compile(r"\b(DamagedFile|Table|SnapshotExpired)Error\b")
Rows = list[dict[str, Any]]
Read = Callable[[Lake, str], pa.Table]


def write(lake: Lake) -> None:
    """Three commits into an append table, and three into one with a primary key; tag the second."""
    dice = np.random.default_rng(0)
    lake.create(events_spec(EVENTS, {"k": Int64, "ts": Int64, "v": Float64, "s": String}))
    lake.create(tiles_spec(TILES, {"k": Int64}, [("n", Int64, "sum")], buckets=1))
    for commit in range(3):
        append_arrow(
            lake,
            EVENTS,
            pa.table(
                {
                    "k": dice.integers(0, 50, ROWS),
                    "ts": np.arange(ROWS) + commit * ROWS,
                    "v": dice.random(ROWS),
                    "s": [str(i % 20) for i in range(ROWS)],
                    "event_day": np.full(ROWS, commit % 2, np.int32),
                    "ingest_time_ms": np.zeros(ROWS, np.int64),
                }
            ),
        )
        append_arrow(
            lake,
            TILES,
            pa.table(
                {
                    "tile_day": np.zeros(ROWS, np.int32),
                    "k": np.arange(ROWS),
                    "tile_start": np.zeros(ROWS, np.int64),
                    "n": dice.integers(0, 9, ROWS),
                }
            ),
        )
    for table in (EVENTS, TILES):
        create_tag(lake, table, "two", 2)


def sorted_rows(table: pa.Table) -> Rows:
    names = sorted(table.column_names)
    rows: Rows = table.select(names).sort_by([(n, "ascending") for n in names]).to_pylist()
    return rows


def by_native(lake: Lake, name: str) -> pa.Table:
    return read_arrow(lake, name)


def by_python(lake: Lake, name: str) -> pa.Table:
    return read_arrow(lake, name, native=False)


def by_keys(lake: Lake, name: str) -> pa.Table:
    """Two keys of fifty, which statistics of files can rule out or not."""
    return read_arrow(lake, name, where={"k": [1, 7]})


def by_files(lake: Lake, name: str) -> pa.Table:
    newest = latest_snapshot(lake, name)
    assert newest is not None
    columns = lake.schema(name).names
    files = live_files(lake, name, newest.id)
    return pa.concat_tables([read_file(file, columns) for file in files])


def by_blocks(lake: Lake, name: str) -> pa.Table:
    newest = latest_snapshot(lake, name)
    assert newest is not None
    layout = read_layout(lake, name, newest.id, block_rows=200)
    schema = lake.schema(name)
    return pa.concat_tables([layout.decode(n, schema) for n in range(len(layout.blocks))])


def by_reader(lake: Lake, name: str) -> pa.Table:
    return _by_reader(lake, name, None)


def by_reader_where(lake: Lake, name: str) -> pa.Table:
    return _by_reader(lake, name, "k < 5")


def _by_reader(lake: Lake, name: str, where: str | None) -> pa.Table:
    with SnapshotReader(lake, name, batch_size=64, where=where, output="arrow", **WHOLE) as read:
        return pa.concat_tables([batch.arrow for batch in read])


def by_stream(lake: Lake, name: str) -> pa.Table:
    """Commits of the append table; the other has none to follow."""
    if name != EVENTS:
        return by_reader(lake, name)
    options: dict[str, Any] = {"start": 1, "until_snapshot": 3, "threads": 0}
    options["idle_timeout_s"] = 30
    with FollowingReader(lake, name, batch_size=64, output="arrow", **options) as read:
        return pa.concat_tables([batch.arrow for batch in read])


def by_frame(lake: Lake, name: str) -> pa.Table:
    source = LakeSource(lake, name)
    return pa.concat_tables([source.read(n, source.schema) for n in range(len(source))])


def by_duckdb(lake: Lake, name: str) -> pa.Table:
    with duckdb.connect() as connection:
        return relation(lake, name, connection).to_arrow_table()


def by_duckdb_where(lake: Lake, name: str) -> pa.Table:
    with duckdb.connect() as connection:
        return relation(lake, name, connection, where="k < 5").to_arrow_table()


def by_polars(lake: Lake, name: str) -> pa.Table:
    schema = lake.schema(name)
    try:
        found = scan(lake, name).collect()
    except polars.exceptions.ComputeError as error:  # Polars' own error, with the text of ours
        ours = OUR_ERROR.search(str(error))
        if ours is None:
            raise
        raise getattr(errors, ours[0])(str(error)) from error
    return found.to_arrow().cast(schema)


def by_tag(lake: Lake, name: str) -> pa.Table:
    with SnapshotReader(lake, name, tag="two", batch_size=64, output="arrow", **WHOLE) as read:
        return pa.concat_tables([batch.arrow for batch in read])


def by_tag_duckdb(lake: Lake, name: str) -> pa.Table:
    with duckdb.connect() as connection:
        return relation(lake, name, connection, tag="two").to_arrow_table()


READS: dict[str, Read] = {
    "native": by_native,
    "python": by_python,
    "keys": by_keys,
    "files": by_files,
    "blocks": by_blocks,
    "reader": by_reader,
    "reader where": by_reader_where,
    "stream": by_stream,
    "data frame": by_frame,
    "DuckDB": by_duckdb,
    "DuckDB where": by_duckdb_where,
    "Polars": by_polars,
    "tag": by_tag,
    "DuckDB tag": by_tag_duckdb,
}
