"""Files of valid and invalid rows in every input format, and the rows expected from them."""

from __future__ import annotations

import gzip
import json
import random
import time
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal as PyDecimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from paimon_features.core.types.schema import (
    Bool,
    Date,
    Decimal,
    DecimalType,
    Float32,
    Float64,
    Int32,
    Int64,
    String,
    Timestamp,
)
from paimon_features.core.windows import DAY_MS
from paimon_features.definitions import EventSource
from tests.flink.ingest.reference_ingest import (
    EPOCH,
    TEXTS,
    Bad,
    csv_rows,
    json_rows,
    stored_float,
    stored_integer,
    timed,
    value_of,
)

SOURCE = EventSource(
    "sales",
    schema={
        "customer_id": Int64,
        "price": Float64,
        "weight": Float32,
        "number": Int32,
        "paid": Bool,
        "day": Date,
        "seen": Timestamp,
        "amount": Decimal(10, 2),
        "note": String,
        "at_ms": Int64,
    },
    event_time="at_ms",
)
NAMES = list(SOURCE.schema)
NOW_MS = time.time_ns() // 1_000_000
"""The approximate clock: no time below is within a day of its limits."""
TOO_LATE_MS = NOW_MS + DAY_MS

Outcome = tuple[str, Any]
"""The text of the row if rejected (None: from its columns), and its values or Bad."""

_GOOD: dict[str, Callable[[random.Random], str]] = {
    "customer_id": lambda rng: rng.choice(("17850", "17850.0", " 12 ", "-3", "")),
    "price": lambda rng: rng.choice(("2.55", ".5", "1e-3", "-0.0", "")),
    "weight": lambda rng: rng.choice(("0.1", "16777217", "")),
    "number": lambda rng: rng.choice(("6", "-2147483648", "+1")),
    "paid": lambda rng: rng.choice(("true", "N", "0", "")),
    "day": lambda rng: rng.choice(("2010-12-01", "1969-12-31", "")),
    "seen": lambda rng: rng.choice(("2010-12-01 08:26", "1960-01-01T00:00:00.0019Z", "5", "")),
    "amount": lambda rng: rng.choice(("12.75", "-3", "0.10", "99999999.99", "1.50000")),
    "note": lambda rng: rng.choice(("", "a", 'say "x", y', " blank ", "Österreich", "it's", '"')),
    "at_ms": lambda rng: rng.choice(("2010-12-01 08:26", "1291191960000", "-1", "1969-07-20")),
}
_BAD_TIMES = ("253402300800000", "-62135596800001", str(TOO_LATE_MS), "0000-01-01", "", "x")


def _cells(rng: random.Random, texts: tuple[str, ...] = TEXTS) -> dict[str, str]:
    """A mostly valid row: one in three has an arbitrary cell."""
    row = {name: make(rng) for name, make in _GOOD.items()}
    if rng.random() < 0.3:
        row[rng.choice(NAMES)] = rng.choice(texts)
    if rng.random() < 0.1:
        row["at_ms"] = rng.choice(_BAD_TIMES)
    return row


def _csv_field(rng: random.Random, text: str) -> str:
    if rng.random() < 0.2 or "," in text or text[:1] == '"':
        return '"' + text.replace('"', '""') + '"'
    return text


def csv_bytes(seed: int, rows: int, names: list[str], end: str = "\n") -> bytes:
    """A CSV file; one line in ten is malformed."""
    rng = random.Random(seed)
    header = ",".join(names).encode()
    lines = [header]
    for _ in range(rows):
        cells = _cells(rng)
        fields = [_csv_field(rng, cells.get(name, "more")) for name in names]
        broken = rng.random() * 10
        if broken < 0.2:
            lines.append(",".join(fields[:-1]).encode())
        elif broken < 0.4:
            lines.append(",".join([*fields, "x"]).encode())
        elif broken < 0.6:
            lines.append((",".join(fields[:-1]) + ',"open').encode())
        elif broken < 0.8:
            lines.append(('"a"b,' + ",".join(fields[1:])).encode())
        elif broken < 1.0:
            lines.append(rng.choice((b"", header, ",".join(fields).encode() + b"\xe4")))
        else:
            lines.append(",".join(fields).encode())
    return end.encode().join(lines) + rng.choice((b"", end.encode()))


_SURROGATES = (
    "\ud800",
    "a\udfff",
    "\ude00\ud83d",
    "\U0001f600",
    "\U0001f600\ud83d",
    "\ud83d\U0001f600",
    "\\ud800",
    "\\\ud800",
    "\\\\ud83d",
    "\ud7ff\ue000",
)


_NOT_UTF8 = (b"\xff", b"caf\xe9", b"\xed\xa0\x80", b"\xc0\x80", b"a\xf4\x90\x80\x80", b"\xe2\x82")


def json_bytes(seed: int, rows: int) -> bytes:
    """JSON lines: strings and numbers, missing keys, and lines that are not objects."""
    rng = random.Random(seed)
    lines = []
    for _ in range(rows):
        row: dict[str, Any] = dict(_cells(rng))
        for name in rng.sample(NAMES, 3):
            row[name] = {"price": 2.5, "customer_id": 12, "paid": True, "note": {"a": ["b"]}}.get(
                name
            )
        if rng.random() < 0.3:
            del row[rng.choice(NAMES)]
        ascii_only = rng.random() < 0.5
        if rng.random() < 0.1:
            # pairs, halves of pairs and what only looks like them, as escapes
            row[rng.choice(("note", "unused"))] = rng.choice(_SURROGATES)
            ascii_only = True
        text = json.dumps({**row, "more": 1}, ensure_ascii=ascii_only)
        broken = rng.random() * 10
        if broken < 0.5:
            bad = (
                "{",
                "[1]",
                "7",
                text + text,
                text + ", 1",
                '{"a": NaN}',
                "",
                "  ",
                "null",
                text[1:],
            )
            text = rng.choice(bad)
        lines.append(text.encode() + (b"\xff" if 0.5 < broken < 0.6 else b""))
    return b"\n".join(lines)


def parquet_table(seed: int, rows: int) -> tuple[pa.Table, list[Any]]:
    """Columns stored in other types than those of the source, and their expected values."""
    rng = random.Random(seed)
    nan = float("nan")
    pools: dict[str, tuple[pa.DataType, list[Any]]] = {
        "customer_id": (pa.float64(), [17850.0, -3.0, 12.5, nan, 2.0**63]),
        "price": (pa.float64(), [2.55, -0.0, 5e-324, nan, float("inf")]),
        "weight": (pa.float64(), [0.1, 16777217.0, 1e39, nan]),
        "number": (pa.int64(), [6, -(2**31), 2**31]),
        "paid": (pa.bool_(), [True, False]),
        "day": (pa.date32(), [date(2010, 12, 1), date(1, 1, 1)]),
        "seen": (
            pa.timestamp("us", "UTC"),
            [datetime(2010, 12, 1, 8, 26, 1, 999), datetime(1960, 1, 1, 0, 0, 0, 999)],
        ),
        "amount": (pa.decimal128(12, 3), [PyDecimal("12.750"), PyDecimal("-3.001")]),
        "note": (pa.string(), ["", "a", 'say "x"', "Österreich"]),
        "at_ms": (
            pa.int64(),
            [0, -1, 1_291_191_960_000, TOO_LATE_MS, 2**62, -(2**62)],
        ),
    }
    made = []
    for _ in range(rows):
        # the first value of each pool is an ordinary one
        row = {
            n: pool[0] if rng.random() < 0.8 else rng.choice(pool) for n, (_, pool) in pools.items()
        }
        if rng.random() < 0.5:
            row[rng.choice(NAMES)] = None
        made.append(row)
    schema = pa.schema([(name, kind) for name, (kind, _) in pools.items()])
    outcomes = [_stored(row) for row in made]
    for row in rng.sample(range(rows), rows // 30):
        outcomes[row] = Bad("unreadable")
        made[row]["note"] = rng.choice(_NOT_UTF8)
    notes = [n.encode() if isinstance(n := row["note"], str) else n for row in made]
    table = pa.Table.from_pylist([{**row, "note": None} for row in made], schema)
    column = table.column_names.index("note")
    # pyarrow checks what it encodes, but not what it reinterprets
    texts = pa.array(notes, pa.binary()).view(pa.string())
    return table.set_column(column, "note", texts), outcomes


def _stored(row: dict[str, Any]) -> Any:
    values: dict[str, Any] = {}
    for name, kind in SOURCE.schema.items():
        value = row[name]
        if isinstance(value, float):
            value = stored_float(value, kind)
        elif isinstance(value, PyDecimal) and isinstance(kind, DecimalType):
            value = value_of(str(value), kind)
        elif name == "number" and value is not None:
            value = stored_integer(value, kind)
        elif isinstance(value, datetime):
            value = EPOCH + (value - EPOCH) // timedelta(milliseconds=1) * timedelta(milliseconds=1)
        values[name] = value
    bad = [value for value in values.values() if isinstance(value, Bad)]
    return bad[0] if bad else timed(values, SOURCE, NOW_MS)


def write_all(folder: Path, seed: int) -> Iterator[tuple[Path, list[Outcome]]]:
    """Write a file of every format and return its expected rows; ``folder`` must exist."""
    other_names = [*reversed(NAMES), "remark"]
    texts = {
        "one.csv": csv_bytes(seed, 400, NAMES),
        "two of three.csv": csv_bytes(seed + 1, 100, NAMES),
        "marked.csv.gz": b"\xef\xbb\xbf" + csv_bytes(seed + 2, 200, NAMES, "\r\n"),
        "deep/turned %41.csv": csv_bytes(seed + 3, 100, other_names),
        "rows.jsonl": json_bytes(seed + 4, 300),
        "more.ndjson.gz": json_bytes(seed + 5, 100),
    }
    for name, content in texts.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        read = csv_rows if ".csv" in name else json_rows
        yield path, list(read(content, SOURCE, NOW_MS))
    table, outcomes = parquet_table(seed + 6, 300)
    path = folder / "typed.parquet"
    pq.write_table(table, path, row_group_size=100)
    yield path, [("", outcome) for outcome in outcomes]
