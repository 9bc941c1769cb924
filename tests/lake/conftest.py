"""Random tile rows with a naive merge, and a real Flink."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal as PyDecimal
from typing import Any

import pyarrow as pa
import pytest

from paimon_features.core.types.schema import Decimal, Float64, Int32, Int64, String
from paimon_features.lake.catalog import Lake
from paimon_features.lake.specs import TableSpec, tiles_spec

PARTIALS = [
    ("p_n", Int64, "sum"),
    ("p_f", Float64, "sum"),
    ("p_min", Float64, "min"),
    ("p_max", String, "max"),
    ("p_dec", Decimal(38, 2), "sum"),
    ("p_i", Int32, "max"),
]
KEYS = ("tile_day", "customer_id", "country", "tile_start")
DAY_MS = 86_400_000


@dataclass
class Tiles:
    """Random rows of a tile table, and the expected result of merging them."""

    spec: TableSpec
    seed: int = 0
    merged: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def rows(self, count: int) -> pa.Table:
        """Rows with many equal keys, nulls in every partial, negative days."""
        rows = []
        for _ in range(count):
            day = self.random.randrange(-1, 2)
            row = {
                "tile_day": day,
                "customer_id": self.random.randrange(12),
                "country": self.random.choice(["DE", "United Kingdom"]),
                "tile_start": day * DAY_MS + self.random.randrange(2) * 300_000,
                "p_n": 1,
                # multiples of 1/4 add up exactly in any order
                "p_f": self._maybe(self.random.randrange(-400, 400) / 4),
                "p_min": self._maybe(self.random.uniform(-1e9, 1e9)),
                "p_max": self._maybe(f"s{self.random.randrange(100):02}"),
                "p_dec": self._maybe(PyDecimal(self.random.randrange(10_000)) / 100),
                "p_i": self._maybe(self.random.randrange(-(2**31), 2**31)),
            }
            self._merge(row)
            rows.append(row)
        schema = pa.schema([pa.field(n, kind.arrow) for n, kind in self.spec.columns.items()])
        return pa.Table.from_pylist(rows, schema)

    def _maybe(self, value: Any) -> Any:
        return None if self.random.random() < 0.4 else value

    def _merge(self, row: dict[str, Any]) -> None:
        key = tuple(row[name] for name in KEYS)
        have = self.merged.setdefault(key, dict.fromkeys(name for name, _, _ in PARTIALS))
        for name, _, merge in PARTIALS:
            old, new = have[name], row[name]
            if new is None:
                continue
            if old is None:
                have[name] = new
            else:
                have[name] = old + new if merge == "sum" else (min, max)[merge == "max"](old, new)


@pytest.fixture
def tiles(lake: Lake) -> Tiles:
    """The table ``tiles_spend_g1`` with two buckets, empty."""
    spec = tiles_spec("tiles_spend_g1", {"customer_id": Int64, "country": String}, PARTIALS, 2)
    lake.create(spec)
    return Tiles(spec)


def by_key(table: pa.Table) -> dict[tuple[Any, ...], dict[str, Any]]:
    rows = table.to_pylist()
    result = {tuple(r[k] for k in KEYS): {n: r[n] for n, _, _ in PARTIALS} for r in rows}
    assert len(result) == len(rows), "duplicate key"
    return result


@pytest.fixture(name="by_key")
def _by_key() -> Callable[[pa.Table], dict[tuple[Any, ...], dict[str, Any]]]:
    return by_key


@pytest.fixture
def flink(lake: Lake, flink_sql: Callable[..., None]) -> Callable[..., None]:
    """Runs SQL statements in a separate Flink, in the database ``features`` of the lake."""
    return functools.partial(flink_sql, lake.warehouse)
