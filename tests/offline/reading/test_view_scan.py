"""Reading files in pieces: in order, small ones of an object store several at once."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from paimon_features.core.errors import SnapshotExpiredError
from paimon_features.lake.reading.deltas import DataFile
from paimon_features.lake.storage import LocalStorage
from paimon_features.lake.storage.verified import VerifiedParquetFile
from paimon_features.offline.joins.entity_codes import EntityCodes
from paimon_features.offline.reading import view_scan
from paimon_features.offline.reading.view_scan import pieces


class FarStorage(LocalStorage):
    """Files of a folder, as those of an object store: the first ones are opened together."""

    is_remote = True

    def __init__(self, at_once: int) -> None:
        super().__init__()
        self._together = threading.Barrier(at_once, timeout=60)
        self._first = iter(range(at_once))

    def open_parquet(self, path: str, size: int | None = None) -> pq.ParquetFile:
        if next(self._first, None) is not None:  # of an iterator over a range, it is atomic
            self._together.wait()
        return super().open_parquet(path, size)


def files(folder: Path, storage: LocalStorage, rows: list[int]) -> list[DataFile]:
    made = []
    for number, count in enumerate(rows):
        path = folder / f"{number}.parquet"
        pq.write_table(pa.table({"n": [number] * count}), path)
        size = path.stat().st_size
        made.append(DataFile(0, {}, str(path), 0, "ADD", count, size, 0, storage))
    return made


def test_small_files_of_an_object_store_are_read_at_once_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_scan, "SMALL_FILE_ROWS", 3)
    rows = [1, 2, 3, 1, 2, 40, 1, 3, 2]
    # one after another, the first would wait for the others in vain
    found = list(pieces(files(tmp_path, FarStorage(5), rows), ["n"], 10))
    assert [table.num_rows for table in found] == [1, 2, 3, 1, 2, 10, 10, 10, 10, 1, 3, 2]
    numbers = pa.concat_tables(found)["n"].to_pylist()
    assert numbers == [number for number, count in enumerate(rows) for _ in range(count)]


def test_of_a_large_file_only_row_groups_with_requested_entities_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_scan, "SMALL_FILE_ROWS", 3)
    users = [*range(100), *range(0, 200, 2), *([7] * 100), *([None] * 100)]
    path = tmp_path / "users.parquet"
    table = pa.table({"n": range(400), "user": users})
    pq.write_table(table, path, row_group_size=50)
    file = DataFile(0, {}, str(path), 0, "ADD", 400, path.stat().st_size, 0)
    decoded: list[tuple[int, str]] = []
    read = VerifiedParquetFile.read_row_group

    def noted(self: VerifiedParquetFile, i: int, columns: list[str], **options: object) -> pa.Table:
        decoded.extend((i, column) for column in columns)
        return read(self, i, columns, **options)

    monkeypatch.setattr(VerifiedParquetFile, "read_row_group", noted)
    requested = pa.table({"user": [7, 51, 199, 7]})
    choice = EntityCodes(requested, ["user"])
    some = pa.concat_tables(pieces([file], ["n", "user"], 100, choice))
    # one is skipped by its statistics (3: up to 198), others by their keys (2: even, 6, 7: nulls)
    keys = [(group, "user") for group in (0, 1, 2, 4, 5, 6, 7)]
    assert decoded == sorted([*keys, (0, "n"), (1, "n"), (4, "n"), (5, "n")], key=_keys_first)
    wanted = table.filter(pc.is_in(table["user"], pa.array([7, 51, 199])))
    assert some.filter(pc.is_in(some["user"], pa.array([7, 51, 199]))).equals(wanted)
    # of a row group that is too large to be held, the rows are the same
    streamed = pa.concat_tables(pieces([file], ["n", "user"], 10, choice))
    assert streamed.filter(pc.is_in(streamed["user"], pa.array([7, 51, 199]))).equals(wanted)


def _keys_first(read: tuple[int, str]) -> tuple[int, bool]:
    return read[0], read[1] != "user"


def test_a_file_that_is_gone_is_reported_at_its_place(tmp_path: Path) -> None:
    made = files(tmp_path, FarStorage(3), [1, 1, 1])
    Path(made[1].path).unlink()
    reader = pieces(made, ["n"], 10)
    with pytest.raises(SnapshotExpiredError, match=r"1\.parquet no longer exists"):
        list(reader)
