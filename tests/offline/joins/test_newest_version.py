"""Table views: the newest version of a row, as Feast and DuckDB's ASOF JOIN have it."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.errors import DefinitionError
from paimon_features.core.types.schema import Float64, Int32, Int64, String, arrow_schema
from paimon_features.core.windows import DAY_MS
from paimon_features.definitions import (
    CompiledTable,
    CompiledView,
    Entity,
    FeatureRef,
    FeatureView,
    TableSource,
    TableView,
)
from paimon_features.definitions.aggregates import Count
from paimon_features.lake import Lake, append_arrow
from paimon_features.lake.specs import events_spec
from paimon_features.lake.writing.table_writer import EventWriter
from paimon_features.offline.store import OfflineStore
from paimon_features.testing.sizes import seeds
from tests.offline.lake_of_views import LakeOfViews
from tests.reference.versions import newest_version

USER = Entity("user", keys={"user": Int64})
PAIR = Entity("pair", keys={"shop": String, "user": Int64})
PROFILES = TableSource(
    "profiles",
    schema={
        "user": Int64,
        "shop": String,
        "since_ms": Int64,
        "made_ms": Int64,
        "plan": String,
        "age": Int32,
    },
    event_time="since_ms",
    created_time="made_ms",
)


class LakeOfTables:
    """The versions of one source, and views of it."""

    def __init__(self, folder: Path, *views: TableView) -> None:
        self.lake = Lake.open(folder, "features")
        self.lake.create(events_spec(PROFILES.table, PROFILES.schema))
        self.views: dict[str, CompiledTable] = {view.name: view.compiled for view in views}
        self.store = OfflineStore(self.lake, lambda name: self.views[name], _no_generation)

    def commit(self, versions: pa.Table, ingest_time_ms: int = 0) -> int:
        days = pa.array((versions["since_ms"].to_numpy() // DAY_MS).astype(np.int32))
        reported = pa.array(np.full(versions.num_rows, ingest_time_ms, np.int64))
        versions = versions.append_column("event_day", days).append_column(
            "ingest_time_ms", reported
        )
        return append_arrow(self.lake, PROFILES.table, versions)

    def read(self, rows: pa.Table, view: str = "profile", **options: Any) -> pa.Table:
        refs = [FeatureRef(view, f.name) for f in self.views[view].features]
        return self.store.get_historical_features(refs, rows, **options)


def _no_generation(view: CompiledView) -> Any:
    raise AssertionError(view)


def versions(*rows: tuple[int, int, int | None, str | None]) -> pa.Table:
    """Versions (user, since, made, plan)."""
    columns = {
        "user": [r[0] for r in rows],
        "shop": ["s"] * len(rows),
        "since_ms": [r[1] for r in rows],
        "made_ms": [r[2] for r in rows],
        "plan": [r[3] for r in rows],
        "age": [0] * len(rows),
    }
    return pa.table(columns, schema=arrow_schema(dict(PROFILES.schema)))


def random_versions(rng: random.Random, count: int, span_ms: int) -> pa.Table:
    columns: dict[str, list[Any]] = {
        "user": [rng.choice([None, *range(12)]) for _ in range(count)],
        "shop": [rng.choice([None, "a", "b"]) for _ in range(count)],
        "since_ms": [rng.randrange(span_ms) for _ in range(count)],
        "made_ms": [rng.choice([None, 0, rng.randrange(2 * span_ms)]) for _ in range(count)],
        "plan": [rng.choice([None, "x", "y", "z"]) for _ in range(count)],
        "age": [rng.choice([None, rng.randrange(9)]) for _ in range(count)],
    }
    return pa.table(columns, schema=arrow_schema(dict(PROFILES.schema)))


@pytest.mark.parametrize("seed", seeds(10))
def test_random_versions_equal_a_loop_in_memory_and_in_parts(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    entity = rng.choice([USER, PAIR])
    span_ms = rng.choice([30, 5 * DAY_MS])
    view = TableView(
        "profile",
        source=PROFILES,
        entity=entity,
        columns=["plan", "age"] if rng.random() < 0.5 or entity is USER else None,
        ttl=rng.choice([None, "10ms", "1d"]),
        edge=rng.choice(["closed", "open"]),
    )
    lake = LakeOfTables(tmp_path, view)
    rows: list[dict[str, Any]] = []
    for commit in range(3):
        part = random_versions(rng, 60, span_ms)
        lake.commit(part, ingest_time_ms=commit)
        rows += [{**row, "ingest_time_ms": commit} for row in part.to_pylist()]
    requested = {
        "user": pa.array([rng.choice([None, *range(14)]) for _ in range(400)], pa.int64()),
        "shop": [rng.choice([None, "a", "b", "c"]) for _ in range(400)],
        "event_time_ms": [
            rng.choice([rng.choice(rows)["since_ms"], rng.randrange(-5, span_ms + 50)])
            for _ in range(400)
        ],
    }
    table = pa.table(requested)
    got = lake.read(table, statuses=True)
    names = [f.name for f in view.compiled.features]
    for row in got.to_pylist():
        key = {name: row[name] for name in entity.keys}
        best = newest_version(view.compiled, rows, key, row["event_time_ms"])
        assert {n: row[n] for n in names} == {n: best[n] if best else None for n in names}, row
        assert {row[f"{n}__status"] for n in names} == {"PRESENT" if best else "MISSING"}
    assert lake.read(table, statuses=True, memory_mb=0.005).equals(got)


@pytest.mark.parametrize("edge", ["closed", "open"])
def test_the_newest_version_is_that_of_an_asof_join(tmp_path: Path, edge: Any) -> None:
    view = TableView("profile", source=PROFILES, entity=USER, columns=["plan", "age"], edge=edge)
    lake = LakeOfTables(tmp_path, view)
    dice = np.random.default_rng(5)
    count = 4_000
    # DuckDB does not say which of two equal times it takes, so no two are equal
    since = dice.permutation(9 * DAY_MS // 1000)[:count].astype(np.int64) * 1000
    history = pa.table(
        {
            "user": dice.integers(0, 300, count),
            "shop": ["s"] * count,
            "since_ms": since,
            "made_ms": pa.nulls(count, pa.int64()),
            "plan": [f"p{i % 7}" for i in range(count)],
            "age": pa.array(dice.integers(0, 90, count), pa.int32()),
        }
    )
    lake.commit(history)
    as_of_ms = np.where(
        np.arange(6_000) % 2, dice.choice(since, 6_000), dice.integers(0, 9 * DAY_MS)
    )
    rows = pa.table(
        {"n": np.arange(6_000), "user": dice.integers(0, 320, 6_000), "event_time_ms": as_of_ms}
    )
    sign = ">=" if edge == "closed" else ">"
    with duckdb.connect() as connection:
        expected = connection.sql(
            f"""SELECT r.n, r.user, r.event_time_ms, h.plan, h.age FROM rows r
            ASOF LEFT JOIN history h ON r.user = h.user AND r.event_time_ms {sign} h.since_ms
            ORDER BY r.n"""
        ).to_arrow_table()
    assert lake.read(rows).to_pydict() == expected.to_pydict()


def test_ttl_includes_a_version_of_exactly_that_age(tmp_path: Path) -> None:
    #  since          100
    #  q - ttl .. q   [100 ... 110]  [101 ... 111]
    view = TableView("profile", source=PROFILES, entity=USER, columns=["plan"], ttl="10ms")
    lake = LakeOfTables(tmp_path, view)
    lake.commit(versions((1, 100, None, "a")))
    rows = pa.table({"user": [1] * 4, "event_time_ms": [99, 100, 110, 111]})
    assert lake.read(rows)["plan"].to_pylist() == [None, "a", "a", None]
    # one row at a time, so that it alone says which versions are looked at
    for i, plan in enumerate([None, "a", "a", None]):
        assert lake.read(rows.slice(i, 1))["plan"].to_pylist() == [plan]


def test_an_older_version_does_not_stand_in_for_a_null_in_the_newest(tmp_path: Path) -> None:
    view = TableView("profile", source=PROFILES, entity=USER, columns=["plan"])
    lake = LakeOfTables(tmp_path, view)
    lake.commit(versions((1, 1, None, "a"), (1, 2, None, None)))
    got = lake.read(pa.table({"user": [1], "event_time_ms": [5]}), statuses=True)
    assert got["plan"].to_pylist() == [None]
    assert got["plan__status"].to_pylist() == ["PRESENT"]


def test_of_versions_of_one_time_the_one_made_last_counts_and_null_is_the_least(
    tmp_path: Path,
) -> None:
    view = TableView("profile", source=PROFILES, entity=USER, columns=["plan"])
    lake = LakeOfTables(tmp_path, view)
    lake.commit(versions((1, 1, 7, "made last"), (1, 1, 5, "z"), (1, 1, None, "z")))
    lake.commit(versions((2, 1, None, "z")), ingest_time_ms=1)
    lake.commit(versions((2, 1, None, "ingested last")), ingest_time_ms=2)
    got = lake.read(pa.table({"user": [1, 2], "event_time_ms": [7, 7]}))
    assert got["plan"].to_pylist() == ["made last", "ingested last"]


def test_a_version_counts_from_when_it_was_known_on(tmp_path: Path) -> None:
    #  since      1: a       5: b            9: c
    #  known      1          50              9
    view = TableView("profile", source=PROFILES, entity=USER, columns=["plan"])
    lake = LakeOfTables(tmp_path, view)
    lake.commit(versions((1, 1, 1, "a"), (1, 5, 50, "b"), (1, 9, 9, "c"), (2, 5, 6, "x")))
    lake.commit(versions((3, 5, 50, "late"), (3, 5, 6, "early"), (3, 5, None, "null")))
    times = [0, 1, 8, 9, 50]
    got = lake.read(pa.table({"user": [1] * 5, "event_time_ms": times}))
    assert got["plan"].to_pylist() == [None, "a", "a", "c", "c"]
    users = pa.table({"user": [2, 2, 3, 3, 3], "event_time_ms": [5, 6, 5, 6, 50]})
    got = lake.read(users, statuses=True)
    assert got["plan"].to_pylist() == [None, "x", "null", "early", "late"]
    assert got["plan__status"].to_pylist() == ["MISSING", *["PRESENT"] * 4]


@pytest.mark.parametrize("unit", ["us", "ns"])
def test_a_version_a_fraction_of_a_millisecond_ahead_is_not_used(tmp_path: Path, unit: str) -> None:
    view = TableView("profile", source=PROFILES, entity=USER, columns=["plan"])
    lake = LakeOfTables(tmp_path, view)
    per_ms = {"us": 1_000, "ns": 1_000_000}[unit]
    writer = EventWriter.of(lake.lake, PROFILES, lambda: 10_000)
    ticks = {
        "since_ms": [5 * per_ms, 6 * per_ms + 9 * per_ms // 10, 8 * per_ms],
        "made_ms": [None, None, 8 * per_ms + 1],
    }
    rows = {name: pa.array(values, pa.timestamp(unit)) for name, values in ticks.items()}
    writer.write(
        pa.table({**rows, "user": [1] * 3, "shop": ["s"] * 3, "plan": ["a", "b", "c"],
                  "age": pa.array([0] * 3, pa.int32())})
    )  # fmt: skip
    times = pa.array(
        [5 * per_ms, 6 * per_ms, 7 * per_ms, 8 * per_ms, 9 * per_ms], rows["made_ms"].type
    )
    got = lake.read(pa.table({"user": [1] * 5, "event_time_ms": times}))
    assert got["plan"].to_pylist() == ["a", "a", "b", "b", "c"]


def test_which_version_counts_does_not_depend_on_the_columns_requested(tmp_path: Path) -> None:
    view = TableView("profile", source=PROFILES, entity=USER, columns=["plan", "age"])
    lake = LakeOfTables(tmp_path, view)
    tied = versions((1, 1, None, "a"), (1, 1, None, "b"))
    lake.commit(tied.set_column(5, "age", pa.array([9, 3], pa.int32())))
    rows = pa.table({"user": [1], "event_time_ms": [1]})
    only = lake.store.get_historical_features([FeatureRef("profile", "age")], rows)
    assert only["age"].to_pylist() == lake.read(rows)["age"].to_pylist() == [3]


def test_versions_committed_after_as_of_are_not_seen(tmp_path: Path) -> None:
    view = TableView("profile", source=PROFILES, entity=USER, columns=["plan"])
    lake = LakeOfTables(tmp_path, view)
    first = lake.commit(versions((1, 1, None, "as it was")))
    time.sleep(0.02)
    as_of = time.time_ns() // 1_000_000
    time.sleep(0.02)
    lake.commit(versions((1, 1, 4, "corrected later")))
    rows = pa.table({"user": [1], "event_time_ms": [5]})
    for pins in (as_of, {PROFILES.table: first}):
        assert lake.read(rows, as_of=pins)["plan"].to_pylist() == ["as it was"]
    assert lake.read(rows)["plan"].to_pylist() == ["corrected later"]


def test_a_service_mixes_windows_and_versions(tmp_path: Path) -> None:
    source = TableSource("sales", schema={"user": Int64, "t": Int64, "x": Float64}, event_time="t")
    counts = FeatureView("counts", source=source, entity=USER, features=[Count(windows=["1d"])])
    latest = TableView("latest", source=source, entity=USER)
    lake = LakeOfViews(tmp_path, counts)
    store = OfflineStore(
        lake.lake, lambda n: latest.compiled if n == "latest" else lake.view(n), lake.generation
    )
    rows = pa.table({"user": [1, 1, 2], "t": [5, 9, 9], "x": [0.5, 1.5, 2.5]})
    lake.commit(rows)
    refs = [FeatureRef("latest", "x"), FeatureRef("counts", "count_1d")]
    requested = pa.table({"user": [1, 1, 3], "event_time_ms": [9, 8, 9]})
    got = store.get_historical_features(refs, requested)
    assert got["x"].to_pylist() == [1.5, 0.5, None]  # closed edge
    assert got["count_1d"].to_pylist() == [1, 1, None]  # open edge


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": ["colour"]}, "column 'colour' of source 'profiles' cannot be a feature"),
        ({"columns": ["user"]}, "column 'user' of source 'profiles' cannot be a feature"),
        ({"columns": []}, r"columns=\[\]; expected the names"),
        ({"columns": ["plan", "plan"]}, "each once"),
        ({"edge": "left"}, "edge='left'; expected 'closed', 'open'"),
        ({"entity": Entity("user", keys={"user": String})}, "key 'user' is String in entity"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"source": PROFILES, "entity": USER, **options}
    with pytest.raises(DefinitionError, match=message):
        TableView("profile", **given)


def test_a_created_time_has_to_be_milliseconds() -> None:
    schema = {"user": Int64, "t": Int64, "made": String}
    for name, got in (("made", "String"), ("maid", "not a column")):
        with pytest.raises(DefinitionError, match=f"created_time='{name}' is {got}"):
            TableSource("profiles", schema=schema, event_time="t", created_time=name)
