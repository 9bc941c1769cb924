"""A Feast repository becomes definitions that mean the same; what has no counterpart is listed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paimon_features.core.errors import DefinitionError
from paimon_features.definitions import Definitions, load_definitions
from paimon_features.integrations.feast.repository_import import (
    Conversion,
    convert,
    read_repository,
)
from paimon_features.lake import Lake
from paimon_features.project import Project
from paimon_features.project.planning.plan import apply_plan
from tests.commands import invoke as run

ENTITIES = """
from feast import Entity, ValueType

driver = Entity(name="driver", join_keys=["driver_id"], value_type=ValueType.INT64,
                description="Who drives.", tags={"team": "rides"})
rider = Entity(name="rider", join_keys=["rider_id"])
"""

REPOSITORY = """
from datetime import timedelta

from feast import (
    FeatureService, FeatureView, Field, FileSource, PushSource, RequestSource, SnowflakeSource,
    StreamFeatureView,
)
from feast.aggregation import Aggregation
from feast.data_format import ParquetFormat
from feast.on_demand_feature_view import on_demand_feature_view
from feast.types import Array, Float32, Float64, Int64, String, Struct

from entities import driver, rider

stats_source = FileSource(
    name="Driver-Stats", path="data/stats.parquet", timestamp_field="event_timestamp",
    created_timestamp_column="created", file_format=ParquetFormat(),
)
stats = FeatureView(
    name="driver_stats", entities=[driver], ttl=timedelta(hours=36),
    schema=[Field(name="conv_rate", dtype=Float32), Field(name="embedding", dtype=Array(Float32)),
            Field(name="profile", dtype=Struct({"a": String})),
            Field(name="driver_id", dtype=Int64)],
    source=stats_source, owner="rides@example.com", tags={"tier": "1"},
)
inferred = FeatureView(name="inferred", entities=[driver], source=stats_source)
pushed = FeatureView(
    name="pair", entities=[driver, rider],
    schema=[Field(name="trips", dtype=Int64), Field(name="rider_id", dtype=String)],
    source=PushSource(name="pushes", batch_source=stats_source),
)
trips = StreamFeatureView(
    name="trip_sums", entities=[driver], ttl=timedelta(days=30), mode="spark",
    timestamp_field="event_timestamp", schema=[Field(name="miles", dtype=Float64)],
    source=PushSource(name="trip_events", batch_source=FileSource(path="nowhere.parquet")),
    aggregations=[
        Aggregation(column="miles", function=function, time_window=timedelta(hours=hours),
                    slide_interval=timedelta(minutes=10))
        for function, hours in (("sum", 1), ("sum", 24), ("max", 1), ("median", 1))
    ],
)
elsewhere = FeatureView(name="elsewhere", entities=[driver], schema=[],
                        source=SnowflakeSource(database="a", table="b"))
provided = RequestSource(name="provided", schema=[Field(name="value", dtype=Int64)])

@on_demand_feature_view(sources=[stats, provided], schema=[Field(name="more", dtype=Float64)])
def on_demand(inputs):
    raise AssertionError("is never run")

model = FeatureService(name="model", features=[stats[["conv_rate"]], trips, on_demand])
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repo"
    (root / "data").mkdir(parents=True)
    (root / "tests").mkdir()
    (root / "tests" / "broken.py").write_text("1 / 0")
    (root / "entities.py").write_text(ENTITIES)
    (root / "views.py").write_text(REPOSITORY)
    columns = {
        "driver_id": pa.array([1], pa.int64()),
        "event_timestamp": pa.array([0], pa.timestamp("us")),
        "created": pa.array([0], pa.timestamp("us")),
        "conv_rate": pa.array([0.5], pa.float32()),
        "city": pa.array(["a"]),
    }
    pq.write_table(pa.table(columns), root / "data" / "stats.parquet")
    return root


@pytest.fixture
def converted(repository: Path) -> Conversion:
    return convert(read_repository(repository), repository)


@pytest.fixture
def definitions(converted: Conversion, tmp_path: Path) -> Definitions:
    (tmp_path / "features.py").write_text(converted.text)
    return load_definitions(tmp_path / "features.py")


def test_a_view_of_rows_becomes_a_table_view_with_its_ttl_types_and_metadata(
    definitions: Definitions,
) -> None:
    view = definitions.tables["driver_stats"]
    assert {f.name: f.type.text for f in view.compiled.features} == {
        "conv_rate": "float32",
        "embedding": "list(float32)",
    }
    assert (view.ttl, view.edge, view.owner) == ("36h", "closed", "rides@example.com")
    assert dict(view.tags) == {"tier": "1"}
    assert {name: kind.text for name, kind in view.entity.keys.items()} == {"driver_id": "int64"}
    source = view.source
    assert (source.name, source.event_time, source.created_time) == (
        "driver_stats",
        "event_timestamp",
        "created",
    )


def test_a_view_without_fields_has_the_columns_of_its_file(definitions: Definitions) -> None:
    features = definitions.tables["inferred"].compiled.features
    assert [(f.name, f.type.text) for f in features] == [
        ("conv_rate", "float32"),
        ("city", "string"),
    ]


def test_several_entities_of_one_view_are_one_with_all_their_keys(
    definitions: Definitions,
) -> None:
    entity = definitions.tables["pair"].entity
    assert (entity.name, {k: v.text for k, v in entity.keys.items()}) == (
        "driver_rider",
        {"driver_id": "int64", "rider_id": "string"},
    )


def test_aggregations_become_windows_of_one_aggregate_each(definitions: Definitions) -> None:
    view = definitions.views["trip_sums"]
    assert [f.name for f in view.compiled.features] == [
        "sum_miles_1h",
        "sum_miles_1d",
        "max_miles_1h",
    ]
    assert view.ttl == "30d"


def test_a_service_keeps_its_selection_and_order(definitions: Definitions) -> None:
    items = [str(item) for item in definitions.services["model"].items()]
    assert items[0] == "driver_stats:conv_rate"
    assert items[1:] == [f"trip_sums:{f}" for f in ("sum_miles_1h", "sum_miles_1d", "max_miles_1h")]


def test_everything_that_does_not_map_is_listed_with_its_reason(converted: Conversion) -> None:
    listed = "\n".join(f"{what}: {why}" for what, why in converted.unmapped)
    for text in (
        "feature view driver_stats: without its field profile of type Struct",
        "stream feature view trip_sums: without its aggregation median of miles",
        "feature view elsewhere: its source is SnowflakeSource; only FileSource",
        "on demand feature view on_demand: its Python function does not map",
        "driver_stats:conv_rate, driver_stats:embedding",
        'pf.Interaction("more", "...", request=provided)',
        'provided = pf.RequestSource("provided", schema={"value": pf.Int64})',
        "feature service model: without its part on_demand, which did not map",
    ):
        assert text in listed
    assert "paimon-features ingest files driver_stats data/stats.parquet" in converted.loads
    assert any("slide_interval" in note for note in converted.notes)
    assert any("counts from its created on" in note for note in converted.notes)


def test_what_cannot_be_served_is_named_in_the_report_and_by_the_plan(
    converted: Conversion, definitions: Definitions, tmp_path: Path
) -> None:
    assert converted.notes[0].startswith(
        "read offline only (history, training sets), not served: view driver_stats, view inferred, "
        "view pair, service model. "
    )
    changes = apply_plan(Lake.open(str(tmp_path / "lake"), "rides"), definitions, 0).changes
    [service] = [change for change in changes if change.kind == "service"]
    warning = "warning: cannot be served, and no model over it can be promoted: table view"
    assert any(detail.startswith(warning) for detail in service.details)


def test_the_definitions_can_be_applied(definitions: Definitions, tmp_path: Path) -> None:
    lake = Lake.open(tmp_path / "lake", "features")
    apply_plan(lake, definitions, now_ms=1)
    assert {"events_driver_stats", "tiles_trip_sums_g1"} <= set(lake.list())


def test_reading_a_repository_leaves_nothing_behind(repository: Path) -> None:
    folder, paths = Path.cwd(), list(sys.path)
    read_repository(repository)
    assert not {"feast", "feast.types", "entities", "views"} & set(sys.modules)
    assert (Path.cwd(), sys.path) == (folder, paths)


def test_what_one_file_imports_from_another_is_the_same_object(repository: Path) -> None:
    found = read_repository(repository)
    drivers = [o for o in found if o.kind == "Entity" and o.name == "driver"]
    view = next(o for o in found if o.name == "driver_stats" and o.kind == "FeatureView")
    assert len(drivers) == 1
    assert view.get("entities") == drivers


def test_a_repository_that_does_not_run_is_refused_with_the_file(repository: Path) -> None:
    (repository / "views.py").write_text("import feast\n1 / 0\n")
    with pytest.raises(DefinitionError, match=r"views\.py, line 2 does not run: ZeroDivisionError"):
        read_repository(repository)


def test_the_command_writes_a_project_and_says_what_to_know(
    repository: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "converted"
    done = run("init", folder, "--from-feast", repository)
    assert done.exit_code == 0, done.output
    assert "\nmapped: " in done.output
    assert "did not map:" in done.output
    load_definitions(folder / "features.py")
    assert Project.open(folder).name == "converted"
    again = run("init", folder, "--from-feast", repository)
    assert (again.exit_code, "already contains" in again.stderr) == (2, True)
    document = json.loads(run("init", tmp_path / "b", "--from-feast", repository, "--json").stdout)
    assert document["mapped"]["feature views"] == 4
    assert document["files"][1] == str(tmp_path / "b" / "features.py")


ODD = """
import colorsys
from datetime import timedelta

import feast
from feast import *
from feast import (
    Entity, FeatureService, FeatureView, Field, FileSource, KafkaSource, SavedDataset,
    StreamFeatureView, stream_feature_view,
)
from feast.aggregation import Aggregation
from feast.types import Float64, Int64, Map

assert not hasattr(Float64, "__len__") and colorsys.ONE_THIRD
day = timedelta(days=1)
user, shop = Entity("user"), Entity(name="shop")
folder = FileSource(name="folder", path="file://@ROOT@/data%20x", timestamp_field="at")
remote = FileSource(path="s3://bucket/data.parquet", timestamp_field="at")
stream = KafkaSource(name="clicks", kafka_bootstrap_servers="b:9092", topic="clicks")

kept = FeatureView(name="User-Stats", entities=[user], source=folder,
                   schema=[Field(name="n", dtype=Int64)])
keyword = FeatureView(name="class", entities=[shop], source=remote,
                      schema=[Field(name="n", dtype=Int64)])
assert not hasattr(kept, "__iter__") and kept.schema[0].dtype is Int64 and kept.projection
summed = StreamFeatureView(
    name="sums", entities=[user], source=folder, udf=len,
    aggregations=[Aggregation(column=c, function="sum", time_window=day, slide_interval=day)
                  for c in ("n", "unknown")],
)

@stream_feature_view(name="clicked", entities=[user], source=stream,
                     schema=[Field(name="n", dtype=Int64)])
def clicked(frame):
    raise AssertionError("is never run")

alone = FeatureView(name="alone", entities=[], source=folder, schema=[])
maps = FeatureView(name="maps", entities=[user], source=stream,
                   schema=[Field(name="m", dtype=Map)])
medians = StreamFeatureView(
    name="medians", entities=[user], source=stream,
    aggregations=[Aggregation(column="n", function="median", time_window=day)],
)
old = SavedDataset(name="old")
served = FeatureService("served", [kept, keyword])
same_name = FeatureService("User Stats", [kept])
nothing = FeatureService(name="nothing", features=[maps])
"""


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    root = tmp_path / "odd"
    (root / "data x" / "part=1").mkdir(parents=True)
    times = pa.array([0], pa.timestamp("us"))
    pq.write_table(
        pa.table({"user": [1], "at": times, "n": [1]}), root / "data x" / "part=1" / "0.parquet"
    )
    (root / "json.py").write_text(ODD.replace("@ROOT@", str(root)))
    return root


@pytest.mark.parametrize("name", ["", "json.py"])
def test_what_is_rare_in_a_repository_maps_or_is_listed(odd: Path, name: str) -> None:
    done = run("init", odd / "project", "--from-feast", odd / name)
    assert done.exit_code == 0, done.output
    definitions = load_definitions(odd / "project" / "features.py")
    assert set(definitions.tables) == {"user_stats", "class", "clicked"}
    # of the file, where neither the entity nor the view has the type
    assert definitions.tables["user_stats"].entity.keys["user"].text == "int64"
    assert definitions.tables["class"].entity.keys["shop"].text == "string"
    sums = definitions.views["sums"]
    assert {f.name: f.type.text for f in sums.compiled.features} == {
        "sum_n_1d": "int64",
        "sum_unknown_1d": "float64",
    }
    # rows that change and events that are summed are two sources
    assert (definitions.tables["user_stats"].source.name, sums.source.name) == (
        "folder",
        "folder_events",
    )
    assert [str(item) for item in definitions.services["served"].items()] == [
        "user_stats:n",
        "class:n",
    ]
    # a name stands for a service or a view
    assert set(definitions.services) == {"served", "user_stats_service"}
    for text in (
        "service user_stats: a view has this name, so it is called user_stats_service here",
        "feature view alone: it has no entity",
        "feature view maps: without its field m of type Map",
        "feature view maps: none of its fields maps",
        "stream feature view medians: none of its aggregations maps",
        "saved dataset old: nothing like it here",
        "feature service nothing: none of its parts maps",
        "User-Stats: User-Stats is called user_stats here",
        "entity shop: the type of shop is a guess, String",
        "sums: the type of unknown is a guess, Float64",
        "sums: its Python function is left out",
        "clicked: its Python function is left out",
        "source clicks: a stream; ingest it with 'ingest topic'",
        f"paimon-features ingest files folder file://{odd}/data%20x",
    ):
        assert text in done.output
    assert "slide_interval" not in done.output


def test_feast_that_is_imported_already_stays(odd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = type(sys)("feast")
    monkeypatch.setitem(sys.modules, "feast", installed)
    assert read_repository(odd / "json.py")
    assert sys.modules["feast"] is installed


def test_a_repository_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="the Feast repository .*gone does not exist"):
        read_repository(tmp_path / "gone")
