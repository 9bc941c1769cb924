"""Tables written by a real Flink: read, followed and protected from expiry in Python."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import SnapshotExpiredError
from paimon_features.core.hashing.buckets import bucket_of
from paimon_features.core.types.schema import Int64, String
from paimon_features.lake.catalog import Lake
from paimon_features.lake.ddl import quote
from paimon_features.lake.metadata.consumers import earliest_snapshot_id, register_consumer
from paimon_features.lake.metadata.snapshots import snapshots
from paimon_features.lake.reading.deltas import live_files, read_delta, read_file
from paimon_features.lake.reading.table_reader import read_arrow
from paimon_features.lake.specs import TABLE_OPTIONS, TableSpec, registry_spec, tiles_spec
from paimon_features.lake.writing.sorted_files import SortedFiles
from paimon_features.lake.writing.table_writer import append_arrow
from tests.lake.spec_forms import create_table_sql, raw_bucket

pytestmark = pytest.mark.flink

ByKey = Callable[[pa.Table], dict[tuple[Any, ...], dict[str, Any]]]


def literal(value: Any, kind: str) -> str:
    text = "NULL" if value is None else f"'{value}'"
    return f"CAST({text} AS {kind})"


def insert(name: str, tiles: Any, count: int) -> str:
    kinds = [kind.flink for kind in tiles.spec.columns.values()]
    rows = [
        f"({', '.join(map(literal, row.values(), kinds))})" for row in tiles.rows(count).to_pylist()
    ]
    return f"INSERT INTO {quote(name)} VALUES {', '.join(rows)}"


@pytest.mark.long
def test_tables_of_flink_equal_the_naive_merge_and_expire_up_to_a_consumer(
    lake: Lake, tiles: Any, by_key: ByKey, flink: Callable[..., None]
) -> None:
    name = tiles.spec.name
    lake.drop(name)
    lake.create(tiles.spec.with_options({"num-sorted-run.compaction-trigger": "2"}))
    other = tiles_spec("made_by_flink", {"k": Int64}, [("p", Int64, "sum")], 2)
    flink(
        [
            create_table_sql(other, "features"),
            create_table_sql(registry_spec(), "features"),
            *(insert(name, tiles, 50) for _ in range(4)),
        ]
    )
    # one spec results in the same table in Flink and in Python
    lake.create(other, ignore_existing=True)
    lake.create(registry_spec(), ignore_existing=True)

    found = list(snapshots(lake, name))
    assert {s.kind for s in found} == {"APPEND", "COMPACT"}
    levels = {f.level for f in live_files(lake, name, found[-1].id)}
    assert 0 in levels
    assert len(levels) > 1  # the merge is over compacted and fresh files
    for native in (True, False):
        assert by_key(read_arrow(lake, name, native=native)) == tiles.merged

    # every row of every APPEND is a level-0 contribution: they add up to what was written
    appended = [
        file for s in found if s.kind == "APPEND" for file in read_delta(lake, name, s.id).files
    ]
    assert {(f.kind, f.level) for f in appended} == {("ADD", 0)}
    counts = [pc.sum(read_file(f, ["p_n"]).column("p_n")).as_py() for f in appended]
    assert sum(counts) == 200
    for file in appended:
        table = read_file(file, ["customer_id", "country"])
        keys = [Column.from_arrow(table.column(i)).values for i in (0, 1)]
        assert set(bucket_of(keys, [Int64, String], 2).tolist()) == {file.bucket}

    # all live files of a bucket, folded, are its merged content
    folded = sum(
        pc.sum(raw_bucket(lake, name, b, found[-1].id, ["p_n"]).column("p_n")).as_py()
        for b in (0, 1)
    )
    assert folded == 200

    held = found[-1].id - 1
    register_consumer(lake, name, "online-0", held)
    expire = "CALL sys.expire_snapshots(`table` => 'features.{}', retain_max => 1, retain_min => 1)"
    flink([expire.format(name)], config={"table.dml-sync": "true"})
    assert earliest_snapshot_id(lake, name) == held
    with pytest.raises(SnapshotExpiredError, match=f"no snapshot {held - 1}; it has {held} to"):
        read_delta(lake, name, held - 1)
    assert by_key(read_arrow(lake, name)) == tiles.merged


def test_a_streaming_job_commits_by_checkpoint_and_creates_hourly_tags(
    lake: Lake, tiles: Any, flink: Callable[..., None]
) -> None:
    name = tiles.spec.name
    row = "MOD(id, 2), MOD(id, 50), 'DE', CAST(0 AS BIGINT), CAST(1 AS BIGINT)"
    flink(
        [
            "CREATE TEMPORARY TABLE numbers (id INT) WITH ('connector' = 'datagen', "
            "'number-of-rows' = '4000', 'rows-per-second' = '2000', "
            "'fields.id.min' = '0', 'fields.id.max' = '999')",
            f"INSERT INTO {quote(name)} (tile_day, customer_id, country, tile_start, p_n) "
            f"SELECT {row} FROM numbers",
        ],
        streaming=True,
        config={
            "execution.checkpointing.interval": "400 ms",
            "table.exec.sink.upsert-materialize": "NONE",
        },
    )
    found = [s for s in snapshots(lake, name) if s.kind == "APPEND"]
    assert len({s.commit_user for s in found}) == 1
    identifiers = [s.commit_identifier for s in found]
    assert identifiers == sorted(set(identifiers))
    assert len(identifiers) >= 2
    for native in (True, False):
        got = read_arrow(lake, name, ["p_n"], native=native).column("p_n")
        assert pc.sum(got).as_py() == 4000
    assert lake.table(name).list_tags()


def test_files_written_from_sorted_rows_are_read_merged_and_compacted_by_flink(
    lake: Lake, tiles: Any, by_key: ByKey, flink: Callable[..., None]
) -> None:
    name = tiles.spec.name
    tiles.rows(60)
    # one row per key, as written by an engine that has merged them
    keys = ("tile_day", "customer_id", "country", "tile_start")
    rows = [dict(zip(keys, key, strict=True)) | tiles.merged[key] for key in sorted(tiles.merged)]
    ordered = pa.Table.from_pylist(rows, lake.schema(name))
    with SortedFiles(lake, name, {"customer_id": Int64, "country": String}, "tile_day") as files:
        for batch in ordered.to_batches(max_chunksize=7):
            files.write(batch)
        assert files.commit("user_1") == 1
    assert by_key(read_arrow(lake, name)) == tiles.merged

    compact = f"CALL sys.compact(`table` => 'features.{name}', compact_strategy => 'full')"
    flink([insert(name, tiles, 30), compact], config={"table.dml-sync": "true"})
    found = list(snapshots(lake, name))
    assert [s.kind for s in found][:2] == ["APPEND", "APPEND"]
    assert found[-1].kind == "COMPACT"
    assert 0 not in {f.level for f in live_files(lake, name, found[-1].id)}
    for native in (True, False):
        assert by_key(read_arrow(lake, name, native=native)) == tiles.merged


def test_flink_does_not_read_a_damaged_page(lake: Lake, flink: Callable[..., None]) -> None:
    # not compressed, so that nothing else notices the bit
    options = {**TABLE_OPTIONS, "file.compression": "none", "parquet.enable.dictionary": "false"}
    for name in ("damaged", "copied"):
        lake.create(TableSpec(name, {"x": Int64}, options=options))
    append_arrow(lake, "damaged", pa.table({"x": np.arange(1_000)}))
    (file,) = live_files(lake, "damaged", 1)
    path = Path(file.path)
    data = bytearray(path.read_bytes())
    data[data.index(np.arange(500, 510).tobytes())] ^= 1
    path.write_bytes(data)
    with pytest.raises(AssertionError, match="CRC checksum verification failed"):
        flink([f"INSERT INTO {quote('copied')} SELECT * FROM {quote('damaged')}"])
    assert list(snapshots(lake, "copied")) == []
