"""Random events and times, chosen to hit edges: the input of differential tests.

Everything follows from a ``random.Random``, so that a seed identifies a failing case.

>>> from paimon_features import Count, Entity, EventSource, FeatureView, Int64
>>> source = EventSource("s", schema={"user": Int64, **VALUE_COLUMNS, "t": Int64}, event_time="t")
>>> user = Entity("user", keys={"user": Int64})
>>> view = FeatureView("v", source=source, entity=user, features=[Count(windows=["1h"])])
>>> random_events(random.Random(1), view, 20).num_rows >= 20
True
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Mapping, Sequence
from decimal import Decimal as PyDecimal
from typing import Any

import pyarrow as pa

from paimon_features.core.types.schema import (
    Bool,
    DataType,
    Date,
    Decimal,
    DecimalType,
    Float64,
    Int32,
    Int64,
    List,
    ListType,
    String,
    arrow_schema,
)
from paimon_features.core.windows import DAY_MS, HOUR_MS, MINUTE_MS
from paimon_features.definitions import FeatureView

VALUE_COLUMNS: Mapping[str, DataType] = {
    "n": Int64,
    "small": Int32,
    "x": Float64,
    "price": Decimal(10, 2),
    "word": String,
    "flag": Bool,
    "day": Date,
    "vec": List(Float64, 3),
    "pair": List(Int32, 2),
}
"""Columns of every generated source after its keys and time."""

EVENT_TIME = "t"

USERS: Mapping[str, Sequence[Any]] = {
    "int64": (0, 1, -7, 2**40),
    "string": ("", "a", "longer than seven bytes", "ü"),
    "bool": (True, False),
}
"""Values of keys, by their type."""

STEPS_MS = (MINUTE_MS, 5 * MINUTE_MS, HOUR_MS, DAY_MS)
"""Lengths of tiles and hops, on whose edges events lie."""


def random_events(rng: random.Random, view: FeatureView, count: int) -> pa.Table:
    """Return events of a few entities: ties, edges of tiles, duplicates, nulls, any order."""
    schema = view.source.schema
    anchor = random_anchor_ms(rng)
    rows = []
    for _ in range(count):
        row = {name: random_value(rng, kind) for name, kind in schema.items()}
        row[EVENT_TIME] = random_time_ms(rng, anchor)
        for key, kind in view.entity.keys.items():
            row[key] = None if rng.random() < 0.03 else rng.choice(USERS[kind.text])
        rows.append(row)
    rows += [dict(row) for row in rng.sample(rows, len(rows) // 10)]
    if view.source.retraction is not None:
        _retract_some(rng, view.source.retraction, schema[view.source.retraction], rows)
    rng.shuffle(rows)
    return pa.Table.from_pylist(rows, schema=arrow_schema(schema))


def _retract_some(
    rng: random.Random, column: str, kind: DataType, rows: list[dict[str, Any]]
) -> None:
    """Mark rows as events, a few wrongly, and add retractions, a few without an event."""
    added, retracted, wrong = (
        ((False,), (True,), (None,)) if kind == Bool else (("+I", "+U"), ("-U", "-D"), (None, "I"))
    )
    for row in rows:
        row[column] = rng.choice(wrong if rng.random() < 0.05 else added)
    chosen = rng.sample(rows, len(rows) // 3)
    rows += [{**row, column: rng.choice(retracted)} for row in chosen]
    for row in rng.sample(rows, len(rows) // 20):
        row[column] = rng.choice(retracted)


def random_anchor_ms(rng: random.Random) -> int:
    """Return a time around which events lie: before 1970, at 1970, in 2011, or far away."""
    return rng.choice((-400 * DAY_MS, -1, 0, 1_300_000_000_000, 32_503_680_000_000))


def random_time_ms(rng: random.Random, anchor_ms: int) -> int:
    """Return a time near the anchor, often on an edge of a tile or hop, or one ms next to it."""
    step = rng.choice(STEPS_MS)
    near = anchor_ms // step * step + rng.randint(-12, 3) * step
    if rng.random() < 0.1:  # late by months
        near -= rng.randint(30, 120) * DAY_MS
    return near + rng.choice((0, 0, 0, -1, 1, rng.randrange(step)))


def random_value(rng: random.Random, kind: DataType) -> Any:
    """Return a value of this type, sometimes null, often one of few so that values tie."""
    if rng.random() < 0.15:
        return None
    text = kind.text
    if isinstance(kind, ListType):
        return _random_list(rng, kind)
    if text == "bool":
        return rng.random() < 0.5
    if text == "string":
        rare = ("1,5", "+a", "a\x01", "long " * 5, "\U0001f600", "\uffff")
        return rng.choice(("", "a", "b", "B", "ä", *rare))
    if text == "date":
        return dt.date(1970, 1, 1) + dt.timedelta(days=rng.choice((-1, 0, 1, 15_000)))
    if text == "int32":
        return rng.choice((0, 1, -1, 2**31 - 1, -(2**31), rng.randint(-100, 100)))
    if text == "int64":
        return rng.choice((0, 1, 2, 3, -5, 2**33, -(2**33), 2**60, rng.randint(-100, 100)))
    if text == "timestamp":
        moments_ms = (-1, 0, 1, 1_300_000_000_123, 253_402_300_799_999, -62_135_596_800_000)
        return dt.datetime(1970, 1, 1) + dt.timedelta(milliseconds=rng.choice(moments_ms))
    if text == "bytes":
        return rng.choice((b"", b"\x00", b"\xff\xfe", b"a"))
    if isinstance(kind, DecimalType):
        greatest = 10**kind.precision - 1
        few = min(9999, greatest)
        units = rng.choice((0, 1, -1, greatest, rng.randint(-few, few)))
        return PyDecimal(f"{units}e-{kind.scale}")
    if text == "float32":
        return rng.choice((0.0, -0.0, 0.5, -0.0625, 1e9, -(2.0**80), 2.0**-140))
    return rng.choice(
        (0.0, -0.0, 0.5, 0.1, -0.005, 2.675, 1e9, -1e15, 1e-300, 1e308, rng.gauss(10, 5))
    )


def _random_list(rng: random.Random, kind: ListType) -> list[Any]:
    """Return a list of the declared length; sometimes of another, or with a null."""
    items = [random_value(rng, kind.item) for _ in range(kind.length or rng.randint(0, 4))]
    if rng.random() < 0.9:
        items = [0 if item is None else item for item in items]
    return items[1:] if rng.random() < 0.05 else items
