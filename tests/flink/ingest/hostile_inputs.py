"""Files that two engines could read differently: encodings, line ends, numbers, stored types."""

from __future__ import annotations

import datetime as dt
import gzip
import json
import random
from collections.abc import Mapping
from decimal import Decimal as PyDecimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from paimon_features.core.errors import ConfigurationError
from paimon_features.core.types.schema import (
    Bool,
    Bytes,
    Date,
    Decimal,
    Float32,
    Float64,
    Int32,
    Int64,
    String,
    Timestamp,
)
from paimon_features.definitions import EventSource
from paimon_features.ingest.input_columns import find_columns
from paimon_features.ingest.input_files import inspect_file
from tests.flink.ingest.ingest_inputs import SOURCE
from tests.flink.ingest.reference_ingest import TEXTS

STORED = EventSource(
    "stored",
    schema={
        "a_int": Int64,
        "a_small": Int32,
        "a_float": Float64,
        "a_single": Float32,
        "a_decimal": Decimal(10, 2),
        "a_text": String,
        "a_bool": Bool,
        "a_day": Date,
        "a_time": Timestamp,
        "at_ms": Int64,
    },
    event_time="at_ms",
)
RAW = EventSource("raws", schema={"data": Bytes, "at_ms": Int64}, event_time="at_ms")
NAMES = list(SOURCE.schema)

_ODD = (
    "12\r", "\r12", "1\x00", "\x0012", "12\x85", "2010-12-01\r", "2.5\r", "true\r", "12\u2028",
    "\ufeff12", "1\t", "\x1f", "\x7f", "a\rb", "  ", '"', "'", "\\", "\u00e9", "e\u0301",
    "9" * 400, "0" * 400 + "1", "1e400", "1e-400", "-0", "+0.0", "1" * 19, "1" * 20, "0x1F", "1E5",
    "NULL", "NaN ", "2010-12-01T00:00:00.000000001Z", "2010-12-01 00:00:00.1234567891",
    "\u0130", "\uff11", "0000-12-31", "2010-12-01  08:26", "24:00", "\x01[line of x",
    "\x01[line of 12 bytes] x",
)  # fmt: skip


def csv_bytes(rng: random.Random, rows: int) -> bytes:
    """CSV with carriage returns, control characters and broken quotes anywhere."""
    lines = [",".join(NAMES).encode()]
    for _ in range(rows):
        cells = []
        for name in NAMES:
            text = "0" if name == "at_ms" else ""
            if rng.random() < 0.15:
                text = rng.choice(_ODD + TEXTS)
            if rng.random() < 0.2:
                text = '"' + text.replace('"', '""') + '"'
            cells.append(text)
        line = bytearray(",".join(cells).encode())
        if rng.random() < 0.15:
            at = rng.randrange(len(line) + 1)
            line[at:at] = rng.choice(
                (b'"', b",", b"\r", b"\xff", b"\xed\xa0\x80", b'""', b'",', b"\x00", b"\xc0\xaf")
            )
        lines.append(bytes(line))
    ends = (b"\n", b"\n", b"\r\n", b"\r\r\n", b"\n\n", b"\n \n")
    return b"".join(line + rng.choice(ends) for line in lines)


def json_bytes(rng: random.Random, rows: int) -> bytes:
    """JSON lines with numbers of every form, doubled keys, nesting, and texts that are no JSON."""
    numbers = (
        "0", "-0", "1", "1.0", "1.50", "1e3", "1E+3", "-1.5e-7", "0.00001", "123456789012345678901",
        "1e400", "0.1e1", "12.000", "-0.0", "1e-7", "100e-2", "9" * 200,
    )  # fmt: skip
    others = (
        "true", "false", "null", "[1, 2.50]", '{"b": 1e3, "a": [null, "x/y"]}', "[]", "{}",
        '"1e3"', '"\\u00e9"', '"\\/"', '"a\\nb"', '"12\\n"', '"\\ud83d\\ude00"', '"\\ud83d"', '""',
        '" 12 "', '"\\u0000"', '"\\u001f"', '"2010-12-01\\n"', '"2.5\\n"', '"\\u2028"',
    )  # fmt: skip
    broken = (
        "{", "[]", "1", '{"a": 01}', '{"a": +1}', '{"a": .5}', '{"a": 1.}', "{'a': 1}", "{a: 1}",
        '{"a": "\t"}', '{"a": 1,}', '{"a": 1} x', '{"at_ms": 0}\t', '\ufeff{"at_ms": 0}',
        '\t{"at_ms": 0}', f'{{"at_ms":0,"note":{"[" * 500 + "]" * 500}}}',
        f'{{"at_ms":0,"note":{"[" * 1200 + "]" * 1200}}}', f'{{"at_ms":0,"note":{"9" * 1200}}}',
        '{"at_ms": 0} {"at_ms": 1}', '{"a": NaN}', '{"a": Infinity}', '// {"a": 1}', '{"a": "\\x"}',
        '{"a": "\\u00zz"}', "\t", '{"":1,"at_ms":0}',
    )  # fmt: skip
    lines = []
    for _ in range(rows):
        if rng.random() < 0.1:
            lines.append(rng.choice(broken).encode())
            continue
        row = ['"at_ms": 0']
        for name in NAMES[:-1]:
            if rng.random() < 0.3:
                value = rng.choice(numbers) if rng.random() < 0.5 else rng.choice(others)
                if rng.random() < 0.3:
                    value = json.dumps(rng.choice(_ODD + TEXTS), ensure_ascii=rng.random() < 0.5)
                row.append(f'"{name}": {value}')
        if rng.random() < 0.1:
            row.append('"at_ms": 5')
        line = ("{" + ", ".join(row) + "}").encode("utf-8", "surrogatepass")
        if rng.random() < 0.03:
            line = line.replace(b":", b"\xff:", 1)
        lines.append(line)
    return b"\n".join(lines)


def stored_columns() -> dict[str, pa.Array]:
    """Columns of every type that Parquet stores, a few of whose values fit somewhere."""
    nan, inf = float("nan"), float("inf")
    whole = [0, 1, -1, 12, 127, None]
    floats = [0.0, -0.0, 1.0, 12.5, 1e7, 1e-3, 1.5e-5, 123456789.25, nan, inf, -inf, 2.0**63, None]
    moments = [0, 1, -1, 1_291_191_960_123, -(10**12), None]
    days = [0, -1, 14_944, -719_162, 2_932_896, None]
    stamps = {
        unit: pa.array(
            [None if m is None else m * {"ms": 1, "us": 1000, "ns": 10**6}[unit] + 7 % 10**3
             if unit != "ms" and m is not None else m for m in moments],
            pa.timestamp(unit),
        )
        for unit in ("ms", "us", "ns")
    }  # fmt: skip
    texts = pa.array(["1", " 2.50 ", "x", "", "true", "2010-12-01", "nan", "é\x1f/", None])
    return {
        "i8": pa.array(whole, pa.int8()),
        "i16": pa.array(whole, pa.int16()),
        "i32": pa.array([*whole, 2**31 - 1], pa.int32()),
        "i64": pa.array([*whole, 2**62, -(2**63), 2**31, 253402300800000], pa.int64()),
        "f32": pa.array(np.array([0.1, 1.5, 12.0, nan, inf, 16777217, 1e-10], np.float32)),
        "f64": pa.array(floats, pa.float64()),
        "bool": pa.array([True, False, None]),
        "text": texts,
        "large_text": texts.cast(pa.large_string()),
        "coded_text": texts.dictionary_encode(),
        "d5_2": pa.array([PyDecimal("1.00"), PyDecimal("-12.50"), None], pa.decimal128(5, 2)),
        "d15_3": pa.array([PyDecimal("1.500"), PyDecimal("99999999.999")], pa.decimal128(15, 3)),
        "d38_0": pa.array([PyDecimal(10**37), PyDecimal(7), PyDecimal(0)], pa.decimal128(38, 0)),
        "day": pa.array(days, pa.int32()).cast(pa.date32()),
        "ms": stamps["ms"],
        "us": stamps["us"],
        "ns": stamps["ns"],
        "us_utc": stamps["us"].cast(pa.timestamp("us", "UTC")),
        "ms_zone": stamps["ms"].cast(pa.timestamp("ms", "Europe/Berlin")),
        "nothing": pa.nulls(3),
    }


def write_stored(folder: Path) -> None:
    """Files with each stored type in each column that can be read from it.

    A file has another type in each column, because each file is a scan of its own. A row has a
    value of one column, nulls in the others and the time 0, so that one bad value hides no other.
    """
    folder.mkdir()
    arrays = list(stored_columns().values())
    for turn in range(len(arrays)):
        stored = {}
        for at, name in enumerate(STORED.schema):
            array = arrays[(turn + at) % len(arrays)]
            if _is_readable(folder / "try.parquet", name, array):
                stored[name] = array
        times = stored.pop("at_ms", pa.array([0]))
        if _zeros(times.type, 1) is None:  # no time but their own
            _write(folder / f"{turn:02d}-times.parquet", {"at_ms": times}, pa.int64())
            times = pa.array([0])
        _write(folder / f"{turn:02d}.parquet", {**stored, "at_ms": times}, times.type)
    int96 = pa.array([0, 1_291_191_960_123_000_000, None], pa.timestamp("ns"))
    pq.write_table(
        pa.table({**{n: pa.nulls(3, k.arrow) for n, k in STORED.schema.items()}, "a_time": int96,
                  "at_ms": int96}),
        folder / "int96.parquet", use_deprecated_int96_timestamps=True,
    )  # fmt: skip


def _is_readable(path: Path, name: str, array: pa.Array) -> bool:
    _write(path, {name: array}, pa.int64())
    try:
        find_columns(inspect_file(path), STORED, {})
    except ConfigurationError:
        return False
    finally:
        path.unlink()
    return True


def _write(path: Path, stored: Mapping[str, pa.Array], time_type: pa.DataType) -> None:
    """A block of rows for each column of ``stored``, in which only that column has values."""
    types = {name: stored[name].type if name in stored else kind.arrow
             for name, kind in STORED.schema.items()}  # fmt: skip
    blocks = []
    for own, array in stored.items():
        columns = {name: pa.nulls(len(array), kind) for name, kind in types.items()}
        if own != "at_ms":
            columns["at_ms"] = _zeros(time_type, len(array))
        blocks.append(pa.table({**columns, own: array}))
    pq.write_table(pa.concat_tables(blocks), path)


def _zeros(kind: pa.DataType, rows: int) -> pa.Array | None:
    """The time 0 of a type, None if it has none."""
    if pa.types.is_null(kind) or pa.types.is_boolean(kind):
        return None
    if pa.types.is_dictionary(kind):
        return pa.array(["0"] * rows).dictionary_encode()
    if pa.types.is_date(kind):
        return pa.array([0] * rows, pa.int32()).cast(kind)
    if pa.types.is_decimal(kind):
        return pa.array([PyDecimal(0)] * rows, kind)
    return pa.array([0] * rows, pa.int64()).cast(kind)


def write_hostile(folder: Path, seed: int) -> None:
    """Text files; ``folder`` must exist."""
    rng = random.Random(seed)
    (folder / "a.csv").write_bytes(csv_bytes(rng, 400))
    (folder / "b.csv.gz").write_bytes(gzip.compress(csv_bytes(rng, 200)))
    (folder / "c.jsonl").write_bytes(json_bytes(rng, 500))
    (folder / "empty.jsonl").write_bytes(b"")
    (folder / "header.csv").write_text(",".join(NAMES))


def write_raw(folder: Path) -> None:
    """Bytes, and times of bytes; ``folder`` must exist."""
    data = pa.array([b"\xff\x00", b"", None, b"x"], pa.binary())
    times = pa.array([0, 5, 7, 253402300800000])
    pq.write_table(pa.table({"data": data, "at_ms": times}), folder / "raw.parquet")
    days = pa.array([dt.date(1970, 1, 2)] * 4)
    pq.write_table(
        pa.table({"data": data.cast(pa.large_binary()), "at_ms": days}), folder / "large.parquet"
    )
