"""Damaged files of a warehouse: every read returns the right rows or a typed error."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paimon_features.errors import DamagedFileError, PaimonFeaturesError
from paimon_features.schema import Float64, Int64, String
from paimon_features.tables import append_arrow, latest_snapshot, read_arrow
from paimon_features.tables.catalog import Lake
from paimon_features.tables.deltas import live_files, read_file, verify_files
from paimon_features.tables.overwrite import Overwrite
from paimon_features.tables.specs import events_spec, tiles_spec
from paimon_features.tables.storage.pages import PageCounts, verify_pages
from paimon_features.testing.sizes import every_seed
from trainer_bridge.blocks.open_layout import read_layout

EVENTS, TILES = "events_retail", "tiles_spend_g1"
ROWS = 300
Rows = list[dict[str, Any]]


def write(lake: Lake) -> None:
    """Three commits into an append table, and three into one with a primary key."""
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


def by_native(lake: Lake, name: str) -> pa.Table:
    return read_arrow(lake, name)


def by_python(lake: Lake, name: str) -> pa.Table:
    return read_arrow(lake, name, native=False)


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


READS: dict[str, Callable[[Lake, str], pa.Table]] = {
    "native": by_native,
    "python": by_python,
    "files": by_files,
    "blocks": by_blocks,
}


def sorted_rows(table: pa.Table) -> Rows:
    names = sorted(table.column_names)
    rows: Rows = table.select(names).sort_by([(n, "ascending") for n in names]).to_pylist()
    return rows


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good") / "warehouse"
    write(Lake.open(folder, "shop"))
    return folder


@pytest.fixture(scope="module")
def right(good: Path) -> dict[tuple[str, str], Rows]:
    lake = Lake.open(good, "shop")
    tables = (EVENTS, TILES)
    return {(n, t): sorted_rows(read(lake, t)) for n, read in READS.items() for t in tables}


def harm(dice: random.Random, path: Path, others: list[Path]) -> str:
    """Damage a file at random; returns how."""
    content = bytearray(path.read_bytes())
    how = dice.choice(["flip"] * 6 + ["cut", "zeros", "swap"])
    at = dice.randrange(len(content))
    if how == "flip":
        content[at] ^= 1 << dice.randrange(8)
    elif how == "cut":
        del content[at:]
    elif how == "zeros":
        end = min(len(content), at + dice.randrange(1, 600))
        content[at:end] = bytes(end - at)
    else:
        content = bytearray(dice.choice(others).read_bytes())
    path.write_bytes(content)
    return f"{how} at {at} of {path.name}"


FILES = {
    "data": "*/bucket-0/*.parquet",
    "manifest": "manifest/manifest-[0-9a-f]*",
    "manifest list": "manifest/manifest-list-*",
    "snapshot": "snapshot/snapshot-*",
    "hint": "snapshot/LATEST",
    "schema": "schema/schema-*",
}


@every_seed(20)
@pytest.mark.parametrize("kind", FILES)
def test_a_damaged_file_is_an_error_or_harmless(
    good: Path, right: dict[tuple[str, str], Rows], tmp_path: Path, kind: str, seed: int
) -> None:
    dice = random.Random(f"{kind} {seed}")
    table = dice.choice([EVENTS, TILES])
    warehouse = tmp_path / f"{kind}{seed}"
    shutil.copytree(good, warehouse)
    files = sorted((warehouse / "shop.db" / table).glob(FILES[kind]))
    path = dice.choice(files)
    how = harm(dice, path, files)
    for name, read in READS.items():
        try:
            found = sorted_rows(read(Lake.open(warehouse, "shop"), table))
        except PaimonFeaturesError:
            continue
        assert found == right[name, table], f"{how}, read by {name}"
    shutil.rmtree(warehouse)


def flipped(path: Path) -> int:
    """Flip a bit in the middle of a page's body, which still decompresses or not."""
    chunk = pq.read_metadata(path).row_group(0).column(0)
    first = chunk.dictionary_page_offset or chunk.data_page_offset
    at = int(first + chunk.total_compressed_size) - 3
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)
    return at


@pytest.mark.parametrize("name", READS)
def test_the_error_names_the_file_its_table_and_what_to_do(
    good: Path, tmp_path: Path, name: str
) -> None:
    shutil.copytree(good, tmp_path / "w")
    lake = Lake.open(tmp_path / "w", "shop")
    path = sorted(Path(lake.path(EVENTS)).glob(FILES["data"]))[0]
    flipped(path)
    with pytest.raises(DamagedFileError, match="does not match its CRC32") as error:
        READS[name](lake, EVENTS)
    text = str(error.value)
    assert str(path) in text
    assert EVENTS in text
    assert "row group 0" in text
    assert "Restore it from a backup" in text
    assert name == "files" or "snapshot 3" in text


def test_an_engine_of_its_own_reads_only_what_was_verified(good: Path, tmp_path: Path) -> None:
    shutil.copytree(good, tmp_path / "w")
    lake = Lake.open(tmp_path / "w", "shop")
    files = live_files(lake, EVENTS, 3)
    verify_files(files, ["k", "ts"])
    path = Path(files[1].path)
    flipped(path)
    with pytest.raises(DamagedFileError, match="column 'k'"):
        verify_files(files, ["k", "ts"])
    verify_files(files, ["ts"])  # what is not read is not verified


def counts(path: Path) -> PageCounts:
    return verify_pages(memoryview(path.read_bytes()), pq.read_metadata(path))


def test_every_page_that_python_writes_has_a_checksum(lake: Lake) -> None:
    write(lake)
    with Overwrite(lake, TILES, "user") as overwrite:
        rows = {"tile_day": pa.array([0], pa.int32()), "k": [1], "tile_start": [0], "n": [4]}
        overwrite.replace(pa.table(rows))
        overwrite.commit()
    found = sorted(Path(lake.warehouse).glob("*/*/*/bucket-0/*.parquet"))
    assert len(found) == 7
    assert [counts(path).without_crc for path in found] == [0] * 7
    assert read_arrow(lake, TILES).num_rows == 1


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_pages_of_every_form_are_verified(tmp_path: Path, compression: str, version: str) -> None:
    rows = pa.table(
        {
            "n": pa.array([None, *range(5_000)], pa.int64()),
            "list": [[i, i] if i % 3 else None for i in range(5_001)],
            "nested": [{"a": i, "b": str(i % 7)} for i in range(5_001)],
            "long": ["x" * 9_000 if i == 7 else "y" for i in range(5_001)],
        }
    )
    path = tmp_path / "a.parquet"
    options: dict[str, Any] = {"data_page_size": 1_000, "row_group_size": 2_000}
    pq.write_table(
        rows,
        path,
        compression=compression,
        data_page_version=version,
        write_page_checksum=True,
        **options,
    )
    found = counts(path)
    assert found.without_crc == 0
    assert found.pages > 30
    pq.write_table(rows, path, compression=compression, data_page_version=version, **options)
    assert counts(path) == PageCounts(found.pages, found.pages)
