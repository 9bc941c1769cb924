"""Names of our own tables and queries are refused where they collide, and work where not."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paimon_features.core.errors import DefinitionError
from paimon_features.core.types.schema import Int64
from paimon_features.definitions import (
    Definitions,
    Entity,
    EventSource,
    FeatureService,
    FeatureView,
    Interaction,
    TableSource,
    TableView,
)
from paimon_features.definitions.aggregates import Sum
from tests.shop_projects import make_project

CONFIG = '[project]\nname = "shop"\nengine = "local"\n[online]\nurl = "memory://"\n'
NAMES = [
    "as_of_ms", "at_ms", "chunk", "count", "created_time", "day_0", "end_0", "entity", "high",
    "ingest_id", "join_row", "k0", "key", "known_by", "label", "low", "n", "ordinal", "origin",
    "p_oldest", "p_x", "part", "position", "problem", "q", "q_ms", "raw", "reason", "row",
    "row_id", "row_index", "served_day", "since", "source", "spool_file", "start_0", "start_day",
    "status", "tile", "tile_0", "tile_day", "tile_start", "time", "training", "ts", "v0",
    "valid_from", "value", "version", "w0_n", "weight", "window",
]  # fmt: skip
DEFINITIONS = f"""
import paimon_features as pf

columns = {{name: pf.Int64 for name in {NAMES!r}}}
user = pf.Entity("user", keys={{"user": pf.Int64}})
orders = pf.EventSource("orders", schema={{"user": pf.Int64, "event_time_ms": pf.Int64, **columns}},
    event_time="event_time_ms")
sums = pf.FeatureView("sums", source=orders, entity=user,
    features=[pf.Sum(name, windows=["1d"], name=name) for name in columns])
rows = pf.TableSource("rows", schema=orders.schema, event_time="event_time_ms")
newest = pf.TableView("newest", source=rows, entity=user)
"""
USER = Entity("user", keys={"user": Int64})
SOURCE = EventSource(
    "orders",
    schema={"user": Int64, "at": Int64, "amount": Int64, "event_time_ms": Int64},
    event_time="at",
)


ROWS = TableSource(
    "rows",
    schema={**SOURCE.schema, "total": Int64, "total__status": Int64},
    event_time="at",
)


def newest(*columns: str) -> TableView:
    return TableView("newest", source=ROWS, entity=USER, columns=columns or None)


def test_columns_and_features_with_names_of_our_queries_have_their_values(tmp_path: Path) -> None:
    project = make_project(tmp_path, DEFINITIONS, CONFIG)
    values = {name: [number, 1_000 + number] for number, name in enumerate(NAMES)}
    events = pa.table({"user": [1, 1], "event_time_ms": [1_000, 2_000], **values})
    pq.write_table(events, tmp_path / "in.parquet")
    for source in ("orders", "rows"):
        assert project.jobs.ingest(source, [tmp_path / "in.parquet"]).accepted == 2
    project.jobs.backfill("sums")
    wanted = {"user": [1, 1], "event_time_ms": [1_500, 5_000]}
    for statuses in (False, True):
        sums = project.get_historical_features("sums", wanted, statuses=statuses).to_pydict()
        newest = project.get_historical_features("newest", wanted, statuses=statuses).to_pydict()
        for name, (first, second) in values.items():
            assert sums[f"{name}_1d"] == [first, first + second], name
            assert newest[name] == [first, second], name


def test_a_feature_has_not_the_name_of_the_time_of_entity_rows() -> None:
    expected = "'event_time_ms' has the name of the time of entity rows; rename it"
    with pytest.raises(DefinitionError, match=f"{expected}, or leave it out by columns="):
        newest()
    with pytest.raises(DefinitionError, match=expected):
        Interaction("event_time_ms", "newest:total * 2")
    assert newest("amount").compiled.features


def test_a_feature_has_not_the_name_of_the_status_of_another() -> None:
    expected = "'total__status' has the name of the status of 'total'; rename one"
    with pytest.raises(DefinitionError, match=expected):
        newest("total__status", "total")
    double = Interaction("total__status", "newest:total * 2")
    service = FeatureService("both", [newest("total"), double])
    with pytest.raises(DefinitionError, match=f"service 'both': .*{expected}"):
        Definitions.of([newest("total"), service])
    assert newest("total__status").compiled.features


def test_features_of_windows_have_names_with_their_window() -> None:
    total = Sum("amount", windows=["1d"], name="event_time_ms")
    view = FeatureView("sums", source=SOURCE, entity=USER, features=[total])
    assert [feature.name for feature in view.compiled.features] == ["event_time_ms_1d"]


@pytest.mark.parametrize("name", ["event_time_ms", "tile_day", "tile_start", "p_x"])
def test_keys_with_names_of_columns_of_tiles_are_refused(name: str) -> None:
    with pytest.raises(DefinitionError, match=f"the key name '{name}' is reserved"):
        Entity("user", keys={name: Int64})


@pytest.mark.parametrize("name", ["event_day", "ingest_time_ms"])
def test_columns_with_names_of_columns_of_events_are_refused(name: str) -> None:
    with pytest.raises(DefinitionError, match=f"the column name '{name}' is reserved"):
        EventSource("orders", schema={"at": Int64, name: Int64}, event_time="at")
