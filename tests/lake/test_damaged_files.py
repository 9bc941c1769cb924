"""Damaged files of a warehouse: every read returns the right rows or a typed error."""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paimon_features.core.errors import DamagedFileError, PaimonFeaturesError
from paimon_features.lake import read_arrow
from paimon_features.lake.catalog import Lake
from paimon_features.lake.reading.deltas import live_files, verify_files
from paimon_features.lake.storage.pages import PageCounts, verify_pages
from paimon_features.lake.writing.overwrite import Overwrite
from paimon_features.testing.sizes import every_seed
from tests.lake.harm import harm
from tests.lake.ways_of_reading import EVENTS, READS, TILES, Rows, sorted_rows, write


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


FILES = {
    "data": "*/bucket-0/*.parquet",
    "manifest": "manifest/manifest-[0-9a-f]*",
    "manifest list": "manifest/manifest-list-*",
    "snapshot": "snapshot/snapshot-*",
    "hint": "snapshot/LATEST",
    "schema": "schema/schema-*",
    "tag": "tag/tag-*",
}


@every_seed(6)
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
    path = Path(live_files(lake, EVENTS, 1)[0].path)
    flipped(path)
    with pytest.raises(DamagedFileError, match="does not match its CRC32") as error:
        READS[name](lake, EVENTS)
    text = str(error.value)
    assert str(path) in text
    assert EVENTS in text
    assert "row group 0" in text
    assert "Restore it from a backup" in text
    assert name == "files" or re.search("snapshot [123]", text)


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
