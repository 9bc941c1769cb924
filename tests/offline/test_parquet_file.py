"""Results as Parquet files: complete under their name, or not there; nothing else is replaced."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paimon_features.errors import RequestError
from paimon_features.offline.parquet_file import write_tables

ROWS = pa.table({"n": [1, 2, 3]})


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "out.parquet"
    path.write_bytes(b"older")
    assert write_tables(ROWS.schema, iter([ROWS.slice(0, 2), ROWS.slice(2)]), path) == 3
    assert pq.read_table(path).equals(ROWS)
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    # a pipe stands for a device: /dev/null would be gone for everybody
    pipe, folder = tmp_path / "pipe", tmp_path / "folder"
    os.mkfifo(pipe)
    folder.mkdir()
    for path in (pipe, folder):
        with pytest.raises(RequestError, match="no file; name another path"):
            write_tables(ROWS.schema, iter([ROWS]), path)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_an_error_on_the_way_leaves_nothing(tmp_path: Path) -> None:
    def broken() -> object:
        yield ROWS
        raise RequestError("no more")

    path = tmp_path / "out.parquet"
    path.write_bytes(b"older")
    with pytest.raises(RequestError, match="no more"):
        write_tables(ROWS.schema, broken(), path)  # type: ignore[arg-type]
    assert path.read_bytes() == b"older"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(RequestError, match="cannot write"):
        write_tables(ROWS.schema, iter([ROWS]), tmp_path / "no" / "out.parquet")
