"""Historical features on Flink, compared with the oracle and the local join."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from paimon_features.cli import cli
from paimon_features.core.errors import RequestError, TableError
from paimon_features.core.times.partition_days import WHOLE_HISTORY
from paimon_features.core.types.schema import Int64, String, arrow_schema
from paimon_features.core.windows import DAY_MS, HOUR_MS, KINDS, Kind
from paimon_features.definitions import Definitions, Entity, EventSource, FeatureRef, FeatureView
from paimon_features.definitions import aggregates as agg
from paimon_features.lake import Lake, append_arrow, read_arrow, table_options
from paimon_features.lake.side_folder import generations
from paimon_features.lake.writing.staging import STAGING_PREFIX
from paimon_features.offline.flink import batch_job as history
from paimon_features.offline.flink.engine import FlinkHistoryEngine
from paimon_features.offline.flink.history_sql import JoinLayout
from paimon_features.offline.flink.join_parts import PartJoin
from paimon_features.offline.store import OfflineStore
from paimon_features.project import Project
from paimon_features.project.engines import EngineOptions
from paimon_features.project.planning.plan import apply_plan
from paimon_features.testing.generators import EVENT_TIME, VALUE_COLUMNS, random_events
from paimon_features.testing.reference.compare import differences
from paimon_features.testing.reference.features import Entered, answer, entered
from paimon_features.testing.reference.tiler import event_rows, tile_table
from tests.generators import random_rows
from tests.matrix import Cell, wrong
from tests.matrix_paths import MatrixLake
from tests.shop_projects import make_project
from tests.tile_jobs import append_events

pytestmark = pytest.mark.flink

WINDOWS = ["7d", None]
MORE = ["this_month", *WINDOWS]
EVERYTHING = FeatureView(
    "everything",
    source=EventSource(
        "everything",
        schema={"user": Int64, "shop": String, EVENT_TIME: Int64, **VALUE_COLUMNS},
        event_time=EVENT_TIME,
    ),
    entity=Entity("user", keys={"user": Int64, "shop": String}),
    tile="1h",
    time_zone="Europe/London",
    derive={"amount": "small * x"},
    where="n IS NULL OR n < 1000000",
    features=[
        agg.Count(windows=["1h", *MORE]),
        agg.Count(windows=["1d"], offset="7min", where="flag"),
        agg.Sum("x", windows=MORE),
        agg.Sum("price", windows=WINDOWS, as_decimal=True),
        agg.Mean("amount", windows=["7d"], scale=2),
        agg.Min("x", windows=WINDOWS),
        agg.Max("small", windows=WINDOWS),
        agg.Max("word", windows=WINDOWS),
        agg.Min("price", windows=["7d"]),
        agg.StdDev("small", windows=["7d"]),
        agg.Skewness("small", windows=["7d"], scale=0),
        agg.First("word", tie="day", windows=MORE),
        agg.Last("word", tie="price", windows=WINDOWS),
        agg.Last("pair", tie="word", windows=["7d"]),
        agg.FirstN("x", n=3, windows=WINDOWS),
        agg.LastN("word", tie="flag", n=3, windows=["7d"]),
        agg.TopK("word", by="price", n=2, windows=WINDOWS),
        agg.BottomK("day", n=2, windows=["7d"]),
        agg.CountBy("word", values=["a", "it's", ""], windows=["7d"]),
        agg.TopCategories("word", n=2, windows=MORE),
        agg.Any(condition="n > 2 OR flag", name="some", windows=["7d"]),
        agg.TimeSinceLast("vec", windows=[None]),
        agg.TimeSinceFirst(windows=["7d"]),
        agg.ApproxCountDistinct("word", windows=WINDOWS),
        agg.Quantile("amount", q=[0.1, 0.5], edges=[-1.5, 0, 1e3], windows=["7d"]),
        agg.VectorMean("pair", windows=["7d"]),
        agg.DecayedSum("small", half_life=["1min", "1d"], windows=WINDOWS),
        agg.DecayedMean("small", half_life="1min", windows=WINDOWS),
    ],
    ttl="60d",
)

MERGED_BY_DAY = replace(
    EVERYTHING,
    name="merged_by_day",
    tile="5min",
    features=[
        agg.Count(windows=["1h", "7d", "this_month"]),
        agg.Count(windows=["12d"], offset="7min"),
        agg.Sum("price", windows=["90min", "12d"], as_decimal=True),
        agg.Min("x", windows=["7d"]),
        agg.Last("word", tie="price", windows=["7d", "30d"]),
        agg.TopCategories("word", n=2, windows=["7d"]),
        agg.LastN("word", n=3, windows=["12d"]),
        agg.ApproxCountDistinct("word", windows=["7d", "12d"]),
        agg.DecayedSum("small", half_life=["5min", "1d"], windows=["1d", "30d"]),
        agg.DecayedMean("x", half_life="5min", windows=["7d"]),
    ],
    ttl=None,
)
"""Its windows start within days, and the complete days in between are merged."""


def make_lake(
    folder: Path,
    view: FeatureView,
    parts: Iterable[pa.Table],
    partition_days: tuple[int, int] = (1, 1),
) -> Lake:
    """A lake with a commit of events and one of tiles for each part.

    ``partition_days`` are those of the events, and of the tiles.
    """
    lake = Lake.open(folder, "features")
    apply_plan(lake, Definitions.of([view]), now_ms=0)
    of_events, of_tiles = partition_days
    table_options.set_partition_days(lake, view.source.table, of_events)
    table_options.set_partition_days(lake, view.compiled.table(1), of_tiles)
    for part in parts:
        append_events(lake, view, part)
        append_arrow(lake, view.compiled.table(1), tile_table(view, event_rows(part), of_tiles))
    return lake


def read(
    lake: Lake,
    view: FeatureView,
    rows: pa.Table,
    engine: FlinkHistoryEngine | None,
    memory_mb: float | None = None,
) -> pa.Table:
    store = OfflineStore(lake, lambda _: view.compiled, lambda v: generations.get(lake, v.name, 1))
    refs = [FeatureRef(view.name, f.name) for f in view.compiled.features]
    return store.get_historical_features(
        refs, rows, statuses=True, engine=engine, memory_mb=memory_mb
    )


def staging(lake: Lake) -> list[str]:
    return [name for name in lake.list() if name.startswith(STAGING_PREFIX)]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> FlinkHistoryEngine:
    """Of SQL, as on a cluster."""
    return FlinkHistoryEngine(tmp_path_factory.mktemp("state"), parallelism=1, parts=False)


@pytest.mark.parametrize(
    ("view", "by_days", "partition_days"),
    [
        (EVERYTHING, False, (512, WHOLE_HISTORY)),
        pytest.param(MERGED_BY_DAY, True, (1, 1), marks=pytest.mark.long),
        pytest.param(MERGED_BY_DAY, True, (8, 64), marks=pytest.mark.long),
    ],
)
def test_every_aggregate_equals_the_oracle(
    tmp_path: Path,
    engine: FlinkHistoryEngine,
    view: FeatureView,
    by_days: bool,
    partition_days: tuple[int, int],
) -> None:
    assert JoinLayout(view.compiled, view.compiled.features).by_days == by_days
    rng = random.Random(11)
    events = random_events(rng, view, 250)
    parts = [events.slice(0, 100), events.slice(100)]
    lake = make_lake(tmp_path, view, parts, partition_days)
    keys, as_of_ms = random_rows(rng, view, events, 100)
    # events thousands of half-lives old, and many rows of one entity
    as_of_ms += [max(as_of_ms) + 30 * DAY_MS + i * HOUR_MS for i in range(20)]
    one = keys.slice(5, 1).take(pa.array([0] * 20))
    keys = pa.concat_tables([keys, one])
    rows = keys.append_column("event_time_ms", pa.array(as_of_ms))
    got = read(lake, view, rows, engine)
    assert got.schema == read(lake, view, rows, None).schema
    names = [f.name for f in view.compiled.features]
    values = event_rows(got.select(names))
    reported = got.select([f"{name}__status" for name in names]).to_pylist()
    found = entered(view, event_rows(events))
    for key, q, mine, statuses in zip(keys.to_pylist(), as_of_ms, values, reported, strict=True):
        whole = None not in key.values()
        own = Entered(e for e in found if whole and all(e[k] == v for k, v in key.items()))
        named = {name.removesuffix("__status"): status for name, status in statuses.items()}
        right = answer(view, own, q)
        assert not differences(view, own, q, right, mine, named), (key, q)
    assert staging(lake) == []


@pytest.mark.parametrize(
    ("kind", "grain", "order"),
    [
        pytest.param(KINDS[0], "1ms", "late", marks=pytest.mark.long),
        (KINDS[1], "5min", "duplicated"),
        pytest.param(KINDS[2], "1h", "shuffled", marks=pytest.mark.long),
    ],
)
def test_every_kind_of_window_equals_the_oracle_as_of_any_commit(
    tmp_path: Path, engine: FlinkHistoryEngine, kind: Kind, grain: str, order: str
) -> None:
    cell = Cell(kind, "5min", grain, order)
    given = MatrixLake(tmp_path, cell).as_of(cell, cell.questions, 2, engine)
    assert not wrong(cell, cell.questions, given, batches=2)


def test_an_empty_request_runs_no_job(
    tmp_path: Path, engine: FlinkHistoryEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "run", lambda *_, **__: pytest.fail("a job was started"))
    empty = make_lake(tmp_path / "empty", EVERYTHING, [])
    rows = pa.table({"user": [1], "shop": ["a"], "event_time_ms": [0]})
    assert read(empty, EVERYTHING, rows, engine).equals(read(empty, EVERYTHING, rows, None))
    events = random_events(random.Random(1), EVERYTHING, 10)
    lake = make_lake(tmp_path / "some", EVERYTHING, [events])
    nobody = pa.table({"user": [None], "shop": ["a"], "event_time_ms": [0]})
    assert read(lake, EVERYTHING, nobody, engine)["count_7d__status"].to_pylist() == ["MISSING"]
    assert staging(lake) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_interrupted_join_leaves_no_tables(
    tmp_path: Path,
    engine: FlinkHistoryEngine,
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
) -> None:
    seen = []

    def fails(lake: Lake, *_: object, **__: object) -> None:
        seen.extend(staging(lake))
        raise error

    monkeypatch.setattr(history, "run", fails)
    events = random_events(random.Random(1), EVERYTHING, 10)
    lake = make_lake(tmp_path, EVERYTHING, [events])
    rows = pa.table({"user": [1], "shop": ["a"], "event_time_ms": [max(events["t"].to_pylist())]})
    with pytest.raises(error):
        read(lake, EVERYTHING, rows, engine)
    assert [name.rsplit("_", 1)[1] for name in seen] == ["edges", "rows", "tiles"]
    assert staging(lake) == []


@pytest.mark.long
def test_the_local_join_in_subtasks_gives_the_same_bytes(
    tmp_path: Path, engine: FlinkHistoryEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert history.can_run_parts()  # what is developed here has the package
    monkeypatch.setattr(history, "run", lambda *_, **__: pytest.fail("SQL was run"))
    dice = random.Random(5)
    events = random_events(dice, EVERYTHING, 120)
    lake = make_lake(tmp_path, EVERYTHING, [events])
    keys, as_of_ms = random_rows(dice, EVERYTHING, events, 200)
    rows = keys.append_column("event_time_ms", pa.array(as_of_ms, pa.int64()))
    whole = read(lake, EVERYTHING, rows, None)
    assert keys.column("user").null_count
    # all rows at once with fewer slots than cores, and in chunks
    for memory_mb, parallelism in ((None, 1), (0.05, 2)):
        in_parts = replace(engine, parts=True, parallelism=parallelism)
        found = read(lake, EVERYTHING, rows, in_parts, memory_mb)
        assert found.equals(whole)
    assert staging(lake) == []


def test_an_interrupted_job_of_parts_leaves_no_tables(
    tmp_path: Path, engine: FlinkHistoryEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def fails(join: PartJoin, *_: object, **__: object) -> None:
        seen.extend(staging(join.lake))
        raise KeyboardInterrupt

    monkeypatch.setattr(history, "run_parts", fails)
    events = random_events(random.Random(1), EVERYTHING, 10)
    lake = make_lake(tmp_path, EVERYTHING, [events])
    rows = pa.table({"user": [1], "shop": ["a"], "event_time_ms": [max(events["t"].to_pylist())]})
    with pytest.raises(KeyboardInterrupt):
        read(lake, EVERYTHING, rows, replace(engine, parts=True))
    assert len(seen) == 2
    assert staging(lake) == []


# -- a project -----------------------------------------------------------------------------

SHOP = """
import paimon_features as pf

schema = {"customer_id": pf.Int64, "item": pf.String, "at_ms": pf.Int64, "amount": pf.Float64}
sales = pf.EventSource("sales", schema=schema, event_time="at_ms")
spend = pf.FeatureView(
    "spend",
    source=sales,
    entity=pf.Entity("customer", keys={"customer_id": pf.Int64}),
    features=[pf.Sum("amount", windows=["1h", "7d"], scale=2), pf.Count(windows=["7d"])],
)
demand = pf.FeatureView(
    "demand",
    source=sales,
    entity=pf.Entity("item", keys={"item": pf.String}),
    features=[pf.Count(windows=["1d"]), pf.Last("customer_id", windows=["7d"])],
)
share = pf.Interaction("share", "ratio(spend:count_7d, demand:count_1d, zero=0)")
profile = pf.TableView(
    "profile",
    source=pf.TableSource(
        "profiles",
        schema={"customer_id": pf.Int64, "since_ms": pf.Int64, "plan": pf.String},
        event_time="since_ms",
    ),
    entity=pf.Entity("customer", keys={"customer_id": pf.Int64}),
)
service = pf.FeatureService("all", [spend, demand, share, profile])
"""


@pytest.fixture
def shop(tmp_path: Path) -> Project:
    """Two entities, an interaction, a table view, and events."""
    project = make_project(tmp_path, SHOP, '[project]\nname = "shop"\n[flink]\nparallelism = 1\n')
    rng = random.Random(3)
    sales = [
        {
            "customer_id": rng.randrange(20),
            "item": rng.choice("abc"),
            "at_ms": rng.randrange(10 * DAY_MS),
            "amount": rng.randrange(10_000) / 100,
        }
        for _ in range(2_000)
    ]
    view = project.definitions.view("spend")
    append_events(project.lake, view, pa.Table.from_pylist(sales, arrow_schema(view.source.schema)))
    plans = {"customer_id": [1, 2], "since_ms": [0, DAY_MS], "plan": ["free", "paid"]}
    rows = pa.table({**plans, "event_day": pa.array([0, 1], pa.int32())})
    append_arrow(project.lake, "events_profiles", rows)
    for name in ("spend", "demand"):
        project.jobs.backfill(name, engine="local")
    return project


@pytest.mark.long
def test_method_command_and_training_set_return_the_same_features(
    shop: Project, tmp_path: Path
) -> None:
    rng = random.Random(4)
    rows = pa.table(
        {
            "label": [rng.random() for _ in range(1_000)],
            "customer_id": [rng.choice((*range(21), None)) for _ in range(1_000)],
            "item": [rng.choice("abcd") for _ in range(1_000)],
            "event_time_ms": [rng.randrange(11 * DAY_MS) for _ in range(1_000)],
        }
    )
    here = shop.get_historical_features("all", rows, statuses=True)
    reported: list[str] = []
    steps: list[tuple[int, int]] = []
    # so little memory that rows and results are processed in several chunks
    there = shop.get_historical_features(
        "all",
        pa.RecordBatchReader.from_batches(rows.schema, iter(rows.to_batches(200))),
        statuses=True,
        memory_mb=0.1,
        engine=EngineOptions("flink", on_message=reported.append),
        progress=lambda done, total: steps.append((done, total)),
    )
    assert there.equals(here)
    assert reported[0].startswith("spend: ")
    assert "rows staged" in reported[0]
    assert steps[-1] == (4_000, 4_000)
    pq.write_table(rows, tmp_path / "rows.parquet")
    made = shop.build_training_set("one", "spend", rows, engine="flink")
    names = ["sum_amount_1h", "sum_amount_7d"]
    assert read_arrow(shop.lake, made.table, names).equals(here.select(names))
    with pytest.raises(TableError, match="different: engine"):
        shop.build_training_set("one", "spend", rows)
    out = tmp_path / "out.parquet"
    command = f"training-set --project {tmp_path} --service spend --engine flink --json"
    arguments = ["--rows", str(tmp_path / "rows.parquet"), "--output", str(out)]
    done = CliRunner().invoke(cli, [*command.split(), *arguments])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["rows"] == 1_000
    assert pq.read_table(out).select(names).equals(here.select(names))
    assert staging(shop.lake) == []


def test_wrong_use_is_rejected(shop: Project) -> None:
    rows = {"customer_id": [1], "event_time_ms": [0]}
    with pytest.raises(RequestError, match="'local' or 'flink'"):
        shop.get_historical_features("spend", rows, engine="spark")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="requires engine='flink'"):
        shop.get_historical_features("spend", rows, engine=EngineOptions(cluster="127.0.0.1:1"))
