"""Ingest inputs: finding and inspecting files and their columns."""

from __future__ import annotations

import csv
import gzip
import re
from datetime import date, datetime
from decimal import Decimal as PyDecimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.errors import ConfigurationError
from paimon_features.ingest.input_files import FIELD, find_files, inspect_file
from tests.flink.ingest.reference_ingest import split_csv
from tests.ingest.conftest import Write

# -- finding files


def test_a_folder_is_searched_recursively_for_known_formats(write: Write, tmp_path: Path) -> None:
    names = ["b.csv", "a.PARQUET", "deep/er/c.jsonl", "z.ndjson.gz", "d.csv.gz"]
    left_out = ["notes.txt", "_SUCCESS", ".hidden.csv", "_temporary/0.csv", "x.csv.bz2", "csv"]
    for name in names + left_out:
        write(name, "")
    found = find_files([tmp_path])
    assert [str(path.relative_to(tmp_path)) for path in found] == sorted(names)
    assert find_files([tmp_path / "b.csv", tmp_path, tmp_path / "b.csv"])[0].name == "b.csv"
    assert len(find_files([tmp_path / "b.csv", tmp_path])) == len(names)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gone.csv", "no such file or folder"),
        ("notes.txt", "expected a name that ends with .csv, .csv.gz, .parquet"),
        ("empty", "no file to ingest in this folder"),
        ("_part.csv", "begin with a dot or an underscore"),
        ("big.csv.GZ", "only files that end with .gz"),
        ("packed", "only files that end with .gz"),
    ],
)
def test_an_invalid_path_is_named_in_the_error(
    write: Write, tmp_path: Path, name: str, message: str
) -> None:
    (tmp_path / "empty").mkdir()
    for other in ("notes.txt", "_part.csv", "big.csv.GZ", "packed/big.jsonl.Gz"):
        write(other, "")
    with pytest.raises(ConfigurationError, match=message) as raised:
        find_files([tmp_path / name])
    assert name in str(raised.value)


# -- inspecting files


def test_a_csv_header_is_read_through_a_byte_order_mark_quotes_and_blanks(write: Write) -> None:
    plain = inspect_file(write("a.csv", "a, b ,c\r\n1,2,3\r\n"))
    assert plain.columns == ("a", "b", "c")
    quoted = inspect_file(write("b.csv", b'\xef\xbb\xbf"a","b, ""c""",d\n'))
    assert quoted.columns == ("a", 'b, "c"', "d")
    packed = inspect_file(write("c.csv.gz", gzip.compress(b"a,b\n1,2\n")))
    assert packed.columns == ("a", "b")
    assert len({plain.sha256, quoted.sha256, packed.sha256}) == 3


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"", "not a CSV header"),
        ("a.csv", b"\n1,2\n", "not a CSV header"),
        ("a.csv", b'a,"b\n', "not a CSV header"),
        ("a.csv", b"a,b,a\n", "'a' occurs twice"),
        ("a.csv", "ä,b\n".encode("latin-1"), "not UTF-8.*convert the file"),
        ("a.csv.gz", b"a,b\n", "cannot be read"),
        ("a.jsonl.gz", gzip.compress(b'{"a": 1}\n' * 1000, mtime=0)[:-20], "cannot be read"),
        ("a.parquet", b"a,b\n", "not a Parquet file"),
    ],
)
def test_an_unreadable_file_is_an_error_before_a_job_starts(
    write: Write, name: str, content: bytes, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as raised:
        inspect_file(write(name, content))
    assert name in str(raised.value)


def test_the_keys_of_json_rows_are_those_of_the_first_mebibyte(write: Write) -> None:
    lines = ['{"a": 1}', "no json", "[1]", '{"b": {"c": 2}}', "", '{"a": 1, "d": nul']
    assert inspect_file(write("a.jsonl", "\n".join(lines))).columns == ("a", "b")
    far = "\n".join(['{"a": "' + "x" * 1000 + '"}'] * 2000 + ['{"late": 1}'])
    assert inspect_file(write("b.jsonl", far)).columns == ("a",)


cells = st.text(st.sampled_from("ab\",' x"), max_size=12)


@given(st.lists(cells, min_size=1, max_size=6).map(",".join))
def test_the_expression_of_a_field_splits_lines_like_a_loop_over_characters(line: str) -> None:
    found = re.findall(f",({FIELD})", "," + line)
    whole = ",".join(found) == line
    naive = split_csv(line)
    assert whole == (naive is not None)
    if naive is not None:
        read = [f[1:-1].replace('""', '"') if f[:1] == '"' else f or None for f in found]
        assert read == naive
        # Python's reader in strict mode agrees, except that it does not distinguish null from empty
        assert [cell or "" for cell in naive] == (next(csv.reader([line], strict=True)) or [""])


def test_the_stored_parquet_type_determines_the_type_in_flink(tmp_path: Path) -> None:
    day, at = date(2020, 1, 1), datetime(2020, 1, 1)
    table = pa.table(
        {
            "i": pa.array([1], pa.int16()),
            "f": pa.array([1.5], pa.float32()),
            "s": pa.array(["a"]).dictionary_encode(),
            "big": pa.array(["a"], pa.large_string()),
            "b": [True],
            "d": [day],
            "ms": pa.array([at], pa.timestamp("ms", "UTC")),
            "ns": pa.array([at], pa.timestamp("ns")),
            "dec": pa.array([PyDecimal("1.25")], pa.decimal128(5, 2)),
            "raw": [b"a"],
            "nothing": pa.nulls(1),
            "list": [[1]],
            "unsigned": pa.array([1], pa.uint32()),
        }
    )
    path = tmp_path / "a.parquet"
    pq.write_table(table, path)
    file = inspect_file(path)
    found = {n: (p.kind, p.flink) for n, p in zip(file.columns, file.physical, strict=True)}
    assert found == {
        "i": ("integer", "SMALLINT"),
        "f": ("float", "FLOAT"),
        "s": ("text", "STRING"),
        "big": ("text", "STRING"),
        "b": ("boolean", "BOOLEAN"),
        "d": ("date", "DATE"),
        "ms": ("timestamp[ms]", "BIGINT"),
        "ns": ("timestamp[ns]", "BIGINT"),
        # stored as bytes: Flink would take a decimal of five digits for an integer
        "dec": ("decimal", "DECIMAL(19, 2)"),
        "raw": ("bytes", "BYTES"),
        "nothing": ("integer", "INT"),
        "list": ("unsupported", "STRING"),
        "unsigned": ("unsupported", "STRING"),
    }
