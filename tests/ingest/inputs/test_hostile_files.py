"""Files that are damaged, or that stand for far more than they contain, are rows or an error."""

from __future__ import annotations

import base64
import bz2
import gzip
import io
import json
import lzma
import random
import subprocess
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

from paimon_features.core.configuration.input_settings import InputSettings
from paimon_features.core.errors import ConfigurationError, PaimonFeaturesError
from paimon_features.ingest.cells import bounded_parquet
from paimon_features.ingest.cells.bounded_parquet import BATCH_BYTES, bounded_batches
from paimon_features.ingest.inputs.avro_rows import avro_fields
from paimon_features.ingest.inputs.opening import open_input
from paimon_features.ingest.inputs.profiles import profile_input, profile_parts
from paimon_features.ingest.inputs.reading_process import ReadingLimits, read_apart
from paimon_features.testing.sizes import every_seed

pytest.importorskip("duckdb")
LIMITS = ReadingLimits(memory_bytes=2 << 30, step_s=20)
BEGINNING_MS = 1_600_000_000_000


def table() -> pa.Table:
    rows = 300
    return pa.table(
        {
            "user_id": [n % 7 for n in range(rows)],
            "ts": [BEGINNING_MS + n * 7_919 for n in range(rows)],
            "word": [None if n % 11 == 0 else f"word {n % 5}" for n in range(rows)],
            "amount": [n / 4 for n in range(rows)],
        }
    )


def files() -> dict[str, bytes]:
    """A small valid file of each form, by its name."""
    import fastavro

    rows = table()
    names = rows.column_names
    objects = [{k: row[k] for k in names} for row in rows.to_pylist()]
    lines = "".join(json.dumps(each) + "\n" for each in objects).encode()
    text = "\n".join([",".join(names)] + [
        ",".join("" if v is None else str(v) for v in row.values()) for row in objects
    ]).encode()  # fmt: skip
    parquet, plain, orc, arrow, feather, avro = (io.BytesIO() for _ in range(6))
    pq.write_table(rows, parquet)
    pq.write_table(rows, plain, use_dictionary=False, compression="none", data_page_size=500)
    pyarrow.orc.write_table(rows, orc)
    coded = rows.set_column(2, "word", rows["word"].combine_chunks().dictionary_encode())
    with pa.ipc.new_file(arrow, coded.schema) as file:
        file.write_table(coded)
    pyarrow.feather.write_feather(rows, feather, compression="zstd")
    fields = [
        {"name": "user_id", "type": "long"}, {"name": "ts", "type": "long"},
        {"name": "word", "type": ["null", "string"]}, {"name": "amount", "type": "double"},
    ]  # fmt: skip
    schema = {"type": "record", "name": "r", "fields": fields}
    fastavro.writer(avro, fastavro.parse_schema(schema), objects, codec="deflate")
    return {
        "a.csv": text, "a.jsonl": lines, "a.json": json.dumps(objects).encode(),
        "a.csv.gz": gzip.compress(text), "a.jsonl.bz2": bz2.compress(lines),
        "a.csv.xz": lzma.compress(text), "a.jsonl.zst": pa.compress(lines, "zstd", asbytes=True),
        "a.parquet": parquet.getvalue(), "plain.parquet": plain.getvalue(),
        "a.orc": orc.getvalue(), "a.arrow": arrow.getvalue(), "a.feather": feather.getvalue(),
        "a.avro": avro.getvalue(),
    }  # fmt: skip


def damaged(data: bytes, rng: random.Random) -> bytes:
    """The file with a few wrong bytes, or without its end or a part."""
    found = bytearray(data)
    at = rng.randrange(len(found))
    kind = rng.randrange(4)
    if kind == 0:
        return bytes(found[:at])
    if kind == 1:
        del found[at : at + rng.randrange(1, 40)]
    elif kind == 2:
        found[at:at] = rng.choice([b"\xff" * 8, b"\x00" * 40, b'"', bytes(found[:at][-100:])])
    else:
        for _ in range(rng.choice([1, 1, 2, 8])):
            found[rng.randrange(len(found))] = rng.choice([0, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    return bytes(found)


def outcomes(paths: Sequence[Path]) -> Iterator[str | None]:
    """The error of each file, None where it has rows; anything else is raised."""
    for path in paths:
        try:
            profile_input(path, InputSettings(), set())
            yield None
        except PaimonFeaturesError as error:
            yield str(error)
        except Exception as error:
            error.add_note(f"file: {base64.b64encode(path.read_bytes()).decode()}")
            raise


@every_seed(1)
def test_damaged_files_have_rows_or_a_clear_error(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    left: list[Path] = []
    for name, data in files().items():
        for number in range(3):
            path = tmp_path / f"{number}-{seed}-{name}"
            path.write_bytes(damaged(data, rng))
            left.append(path)
    while left:
        first = left[0]
        try:
            for found in read_apart(first, outcomes, tuple(left), limits=LIMITS):
                assert found is None or left[0].name in found, found
                left.pop(0)
        except ConfigurationError as error:
            if first.name not in str(error):
                raise
            left.pop(0)  # of which the process died


def test_valid_files_of_each_form_have_all_rows(tmp_path: Path) -> None:
    for name, data in files().items():
        path = tmp_path / name
        path.write_bytes(data)
        profile = profile_input(path, InputSettings(), set())
        assert (profile.rows, profile.complete, profile.unreadable) == (300, True, 0), name


# -- processes that end -----------------------------------------------------------------------


def test_a_header_without_rows_ends_init_with_an_error(tmp_path: Path) -> None:
    path = tmp_path / "header.csv"
    path.write_text("a,b,c\n")
    program = (
        "from paimon_features.ingest.inputs.profiles import profile_input\n"
        "from paimon_features.core.configuration.input_settings import InputSettings\n"
        "import pathlib, sys\n"
        "try: profile_input(pathlib.Path(sys.argv[1]), InputSettings(), set())\n"
        "except Exception as error: kept = error; print(error)\n"
    )
    for command in (["-c", program, path], ["-m", "paimon_features", "init", tmp_path / "p",
                                            "--from", path]):  # fmt: skip
        done = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True)
        assert done.returncode == (0 if "-c" in command else 2), done.stderr
        assert "(a, b, c) but no rows" in done.stdout + done.stderr
        assert "terminate" not in done.stderr


def varint(number: int) -> bytes:
    """A number as Thrift's compact protocol and Avro write it."""
    left, out = number << 1, bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*out, left])


def test_a_parquet_file_with_columns_of_different_lengths_names_itself(tmp_path: Path) -> None:
    """A page that says that it has fewer rows than it has: pyarrow 16 ends by a signal."""
    rows = 3_000
    file = io.BytesIO()
    times = pa.array(range(BEGINNING_MS, BEGINNING_MS + rows))
    texts = [str(n) for n in range(rows)]
    pq.write_table(pa.table({"user_id": range(rows), "ts": times, "s": texts}), file)
    data = file.getvalue()
    size = int.from_bytes(data[-8:-4], "little")
    place = data.rindex(varint(rows), 0, len(data) - 8 - size)
    path = tmp_path / "lengths.parquet"
    path.write_bytes(data[:place] + varint(1_000) + data[place + 2 :])
    try:
        [profile] = read_apart(path, profile_parts, path, InputSettings(), set(), limits=LIMITS)
    except ConfigurationError as error:
        found = str(error)
    else:
        found = f"{path} has {profile.rows} rows to a later pyarrow"
    assert str(path) in found


# -- a few bytes that stand for many ----------------------------------------------------------


def test_a_text_that_is_stored_once_for_many_rows_is_read_in_parts(tmp_path: Path) -> None:
    rows, longest = 20_000, 100_000
    words = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), ["x" * longest])
    path = tmp_path / "texts.parquet"
    pq.write_table(pa.table({"user_id": range(rows), "word": words}), path)
    assert path.stat().st_size < 300_000
    found = 0
    for batch in bounded_batches(path, 1 << 16):
        assert batch.num_rows * longest <= BATCH_BYTES
        found += batch.num_rows
    assert found == rows
    first = next(open_input(path, InputSettings()).batches)
    assert first.column("word").type == pa.string()
    assert first.nbytes <= 2 * BATCH_BYTES


def test_lists_of_more_items_than_bytes_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_parquet, "MOST_ITEMS_BYTES", 1 << 20)
    items = pa.array(np.zeros(1_000_000, np.int8))
    lists = pa.ListArray.from_arrays([0, len(items)], items)
    path = tmp_path / "lists.parquet"
    pq.write_table(pa.table({"user_id": [1], "ts": [BEGINNING_MS], "items": lists}), path)
    assert path.stat().st_size < 3_000
    with pytest.raises(pa.ArrowInvalid, match=r"items of column 'items' are stored in"):
        next(bounded_batches(path, 10))
    found = next(bounded_batches(path, 10, ["user_id"]))  # the others are readable
    assert found.to_pydict() == {"user_id": [1]}


def avro(schema: Any, count: int, body: bytes, codec: bytes = b"null") -> bytes:
    """An Avro file of one block, which says that it has ``count`` records."""
    meta = {b"avro.schema": json.dumps(schema).encode(), b"avro.codec": codec}
    out = b"Obj\x01" + varint(len(meta))
    for key, value in meta.items():
        out += varint(len(key)) + key + varint(len(value)) + value
    return out + b"\0" + b"0" * 16 + varint(count) + varint(len(body)) + body + b"0" * 16


def record(**fields: Any) -> dict[str, Any]:
    made = [{"name": name, "type": kind} for name, kind in fields.items()]
    return {"type": "record", "name": "r", "fields": made}


EMPTY = {"type": "fixed", "name": "f", "size": 0}
ARRAY = {"type": "array", "items": "null"}


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (avro(record(a="null"), 2**40, b""), "its records take no bytes"),
        (avro(record(a=EMPTY), 2**40, b""), "its records take no bytes"),
        (
            avro(record(n="long", a=ARRAY), 1, varint(1) + varint(2**40) + b"\0"),
            "items of an array",
        ),
        (avro(record(n="long", a=["null", ARRAY]), 1, b""), "items of an array"),
        (avro(record(n="long", a="r"), 1, b""), "contains itself"),
        (avro(record(a="string"), 1, varint(2**50)), "cannot be read as Avro"),
        (avro(record(a="long"), 2**50, b"\2"), "cannot be read as Avro"),
        (avro("string", 1, b"\2a"), "expected records"),
        (avro(record(a="no_such_type"), 1, b"\2"), "cannot be read as Avro"),
        (avro(record(a="bytes"), 1, zlib.compress(varint(2**33))[2:-4], b"deflate"), "as Avro"),
    ],
)
def test_avro_files_without_end_are_refused(data: bytes, error: str, tmp_path: Path) -> None:
    path = tmp_path / "a.avro"
    path.write_bytes(data)
    with pytest.raises(ConfigurationError, match=rf"a\.avro: .*{error}"):
        profile_input(path, InputSettings(), set())


def test_avro_schemas_of_finite_values_are_read() -> None:
    tree = record(value="long", left=["null", "r"], children={"type": "array", "items": "r"})
    assert avro_fields(tree) == ["value", "left", "children"]
    named = record(a={"type": "fixed", "name": "f", "size": 4}, b="f", c={"type": "map",
                   "values": "null"}, d=["null", "string"], e="null")  # fmt: skip
    assert avro_fields(named) == ["a", "b", "c", "d", "e"]


def deep_json(path: Path, depth: int) -> Path:
    """A file with one object, in which lists are nested."""
    row = '{"user_id":1,"ts":1600000000000,"d":' + "[" * depth + "]" * depth + "}"
    path.write_text(f"[{row}]" if path.suffix == ".json" else f"{row}\n")
    return path


def test_json_that_is_nested_deeply_is_an_error_or_a_rejected_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"deep\.json: .*nested in each other"):
        profile_input(deep_json(tmp_path / "deep.json", 100_000), InputSettings(), set())
    lines = deep_json(tmp_path / "deep.jsonl", 100_000)
    with pytest.raises(ConfigurationError, match=r"deep\.jsonl: .*no JSON object.*; found"):
        profile_input(lines, InputSettings(), set())
    lines.write_text('{"user_id":1,"ts":1600000000000}\n' + lines.read_text())
    profile = profile_input(lines, InputSettings(), set())
    assert (profile.rows, profile.unreadable) == (1, 1)


@pytest.mark.parametrize("ending", ["json", "jsonl"])
def test_nested_values_of_json_are_a_column_that_is_skipped(ending: str, tmp_path: Path) -> None:
    profile = profile_input(deep_json(tmp_path / f"a.{ending}", 500), InputSettings(), set())
    assert {c.field: c.role for c in profile.columns}["d"] == "skipped"


def test_a_number_of_very_many_digits_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "digits.json"
    path.write_text('[{"user_id":1,"ts":' + "9" * 5_000 + "}]")
    with pytest.raises(ConfigurationError, match=r"digits\.json: .*digits"):
        profile_input(path, InputSettings(), set())


def test_long_json_texts_are_read_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl.gz"
    line = b'{"user_id":1,"ts":1600000000000,"t":"' + b"x" * (10 << 20) + b'"}\n'
    with gzip.open(path, "wb") as file:
        for _ in range(12):
            file.write(line)
    sizes = [batch.num_rows for batch in open_input(path, InputSettings()).batches]
    assert (sum(sizes), max(sizes)) == (12, 7)


@pytest.mark.parametrize("ending", ["json", "jsonl"])
def test_json_with_other_keys_in_each_object_is_an_error(ending: str, tmp_path: Path) -> None:
    """Each key is a column of every batch: memory would grow with the square of the objects."""
    path = tmp_path / f"keys.{ending}"
    objects = [json.dumps({f"key_{number}": 1}) for number in range(20_000)]
    path.write_text("\n".join(objects) if ending == "jsonl" else f"[{','.join(objects)}]")
    with pytest.raises(
        ConfigurationError, match=r"keys\.jsonl?: .* more than 10,000 different keys"
    ):
        for _ in open_input(path, InputSettings()).batches:
            pass


def test_a_line_of_json_without_end_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "line.jsonl.gz"
    with gzip.open(path, "wb") as file:
        file.write(b'{"user_id":1,"ts":1600000000000}\n{"t":"' + b"x" * (40 << 20))
    with pytest.raises(ConfigurationError, match=r"line\.jsonl\.gz: a line of more than"):
        profile_input(path, InputSettings(), set())


def test_a_line_without_end_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "line.csv.gz"
    with gzip.open(path, "wb") as file:
        file.write(b"user_id,ts\n" + b"1" * (40 << 20))
    with pytest.raises(ConfigurationError, match=r"line\.csv\.gz: .*a row has more than 8 MiB"):
        profile_input(path, InputSettings(), set())


def test_first_lines_that_are_long_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    path.write_text(("x" * 140_000 + ",1\n") * 3)
    with pytest.raises(ConfigurationError, match=r"long\.csv: "):
        profile_input(path, InputSettings(), set())


def test_runs_of_very_many_rows_are_read_in_parts(tmp_path: Path) -> None:
    many = 2**31 - 2
    kind = pa.run_end_encoded(pa.int32(), pa.int64())
    runs = pa.RunEndEncodedArray.from_arrays([many], pa.array([BEGINNING_MS]), kind)
    batch = pa.record_batch({"ts": runs, "none": pa.nulls(many)})
    path = tmp_path / "runs.arrow"
    with pa.ipc.new_file(str(path), batch.schema) as file:
        file.write_batch(batch)
    first = next(open_input(path, InputSettings()).batches)
    assert (first.num_rows, first.column("ts").type) == (1 << 16, pa.int64())


def test_days_after_9999_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "days.parquet"
    days, times = pa.array([10**7] * 2, pa.date32()), pa.array([10**15] * 2, pa.timestamp("ms"))
    own = pa.array([BEGINNING_MS] * 2, pa.timestamp("ms"))
    events = {"user_id": [1, 2], "ts": own, "until": days, "last": times}
    pq.write_table(pa.table(events), path)
    profile = profile_input(path, InputSettings(), set())
    shown = {c.field: c.example for c in profile.columns}
    assert (shown["until"], "out of range" in shown["last"]) == ("29349-01-26", True)
