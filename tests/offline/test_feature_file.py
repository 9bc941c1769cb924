"""Results as files: complete under their name, or not there; nothing else is replaced."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from paimon_features.core.errors import RequestError
from paimon_features.offline.feature_file import check_output, write_tables

ROWS = pa.table({"n": [1, 2, 3]})


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "out.parquet"
    path.write_bytes(b"older")
    assert write_tables(ROWS.schema, iter([ROWS.slice(0, 2), ROWS.slice(2)]), path) == 3
    assert pq.read_table(path).equals(ROWS)
    assert list(tmp_path.iterdir()) == [path]


def read_csv(path: Path) -> pa.Table:
    """A null has no quotes, an empty text has."""
    how = pa.csv.ConvertOptions(strings_can_be_null=True, quoted_strings_can_be_null=False)
    return pa.csv.read_csv(path, convert_options=how)


def read_arrow(path: Path) -> pa.Table:
    return pa.ipc.open_file(path).read_all()


@pytest.mark.parametrize(
    ("suffix", "read"),
    [
        (".parquet", pq.read_table),
        (".pq", pq.read_table),
        (".csv", read_csv),
        (".csv.gz", read_csv),
        (".arrow", read_arrow),
        (".feather", read_arrow),
        (".CSV", read_csv),
    ],
)
def test_the_suffix_is_the_format(tmp_path: Path, suffix: str, read: Any) -> None:
    """Also for pieces with dictionaries of their own, for nulls and for texts that need quotes."""
    texts = pa.chunked_array(
        [pa.array(each).dictionary_encode() for each in (["a,b", None], ['"', ""], ["a,b"])]
    )
    rows = pa.table({"n": [1, 2, None, 4, 5], "status": texts})
    path = tmp_path / f"v1.2 out{suffix}"
    assert write_tables(rows.schema, iter([rows.slice(0, 3), rows.slice(3)]), path) == 5
    assert read(path).to_pylist() == rows.to_pylist()
    first = path.read_bytes()
    write_tables(rows.schema, iter([rows]), path)
    assert path.read_bytes() == first


@pytest.mark.parametrize("name", ["out", "out.xlsx", "out.parquet.gz", ".csv", "csv"])
def test_other_suffixes_are_refused_before_anything_is_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(RequestError, match=r"names no format; expected one of .parquet, .pq, .csv"):
        check_output(tmp_path / name)


def test_lists_have_no_cells(tmp_path: Path) -> None:
    lists = pa.table({"n": [1], "last": [[1.0]], "first": [["a"]]})
    with pytest.raises(RequestError, match=r"last, first are lists; write .parquet or .arrow"):
        write_tables(lists.schema, iter([lists]), tmp_path / "out.csv")
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    # a pipe stands for a device: /dev/null would be gone for everybody
    pipe, folder = tmp_path / "pipe", tmp_path / "folder"
    os.mkfifo(pipe)
    folder.mkdir()
    for path in (pipe, folder):
        with pytest.raises(RequestError, match="not a file; name another path"):
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
