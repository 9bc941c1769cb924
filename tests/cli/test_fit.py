"""``fit`` on the retail log: tiles, events, features, and versions that follow a stream."""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from paimon_features.core.windows import DAY_MS
from paimon_features.lake import append_arrow, table_options
from paimon_features.models.fitted_table import fitted_versions
from paimon_features.project import Project
from paimon_features.project.verification.parity import verify
from paimon_features.testing.reference.tiler import event_rows, tile_table
from paimon_features.transformers import MinMaxScaler, OneHotEncoder, StandardScaler
from tests.commands import run
from tests.shop_projects import make_project

RETAIL = Path(__file__).parents[2] / "examples" / "retail"
STATISTICS = """
statistics = pf.statistics_view("retail_statistics", retail, [
    pf.Numbers("amount", scale=4, edges=pf.linear_edges(-50, 200, 50)), pf.Numbers("quantity"),
    pf.Numbers("unit_price", scale=3, edges=pf.log_edges(0.1, 100, 0.2)),
    pf.Categories("country", ["United Kingdom", "France", "EIRE"])],
    tile="1d", derive={"amount": "quantity * unit_price"}, where="quantity > 0")
"""
PINNED = """
scaled = pf.Transformed("scaled", ["customer_spend:sum_amount_30d", "customer_spend:count_30d"],
    pf.Fitted("spend_scaler", version=1))
model = pf.FeatureService("model", [scaled])
"""
ROWS = 30_000
CUT = "2010-12-05T12:00:00"
CUT_MS = 1_291_550_400_000


@pytest.fixture(scope="module")
def log() -> pa.Table:
    return pq.read_table(RETAIL / "data" / "online_retail.parquet").slice(0, ROWS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, log: pa.Table) -> Path:
    """The first days of the log with their tiles, made once."""
    folder = tmp_path_factory.mktemp("retail")
    project = make_project(folder, (RETAIL / "features.py").read_text() + STATISTICS)
    commit(project, log)
    for view in ("retail_statistics", "customer_spend"):
        project.jobs.backfill(view)
    return folder


@pytest.fixture
def project(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A copy of it."""
    shutil.copytree(folder, tmp_path / "retail")
    monkeypatch.chdir(tmp_path / "retail")
    monkeypatch.setenv("COLUMNS", "160")
    return Project.open(".")


def commit(project: Project, rows: pa.Table) -> None:
    rows = rows.select(list(project.definitions.source("retail").schema))
    days = pc.divide(rows["invoice_time_ms"], DAY_MS).cast(pa.int32())
    append_arrow(project.lake, "events_retail", rows.append_column("event_day", days))


def members(log: pa.Table) -> pa.Table:
    kept = log.filter(pc.greater(log["quantity"], 0))
    amount = pc.multiply(kept["quantity"].cast(pa.float64()), kept["unit_price"])
    return kept.append_column("amount", amount)


def test_fits_from_tiles_are_those_of_the_rows(project: Project, log: pa.Table) -> None:
    reported = run("fit", "standard_scaler", "--view", "retail_statistics", "--columns",
               "amount,quantity", "--name", "scaler").output  # fmt: skip
    rows = members(log)
    assert (
        f"scaler v1: standard_scaler of amount, quantity from {len(rows):,} rows (tiles)"
        in reported
    )
    assert "'paimon-features fitted scaler 1 --export'" in reported
    expected = StandardScaler().fit(rows.select(["amount", "quantity"]))
    found = project.fitted.load("scaler").transformer
    assert isinstance(found, StandardScaler)
    assert found.mean_ == pytest.approx(expected.mean_, rel=1e-12)
    assert found.var_ == pytest.approx(expected.var_, rel=1e-10)
    again = run("fit", "StandardScaler", "--view", "retail_statistics", "--columns",
                "amount,quantity", "--name", "scaler").output  # fmt: skip
    assert "scaler v1" in again
    assert "unchanged since" in again

    before = rows.filter(pc.less(rows["invoice_time_ms"], CUT_MS))
    document = json.loads(run(
        "fit", "min_max_scaler", "--view", "retail_statistics", "--columns", "quantity,unit_price",
        "--as-of", CUT, "--set", "feature_range=[-1, 1]", "--export", "--json",
    ).stdout)  # fmt: skip
    assert document["fitted_on"]["until_ms"] == CUT_MS
    assert document["rows"] == len(before)
    # the cut is within a tile of a day, so that events are read, too
    assert [t["table"] for t in document["fitted_on"]["tables"]] == [
        "tiles_retail_statistics_g1", "events_retail",
    ]  # fmt: skip
    made = MinMaxScaler((-1, 1)).fit(before.select(["quantity", "unit_price"]))
    assert project.fitted.load("retail_statistics_min_max_scaler").transformer == made
    assert Path(document["exported"]).is_file()

    refused = run("fit", "one_hot_encoder", "--view", "retail_statistics", "--columns", "country",
                  code=1).output  # fmt: skip
    assert "values that are none of the declared categories" in refused
    run("fit", "one_hot_encoder", "--view", "retail_statistics", "--columns", "country",
        "--from", "events", "--name", "countries", "--set", "handle_unknown=ignore")  # fmt: skip
    encoder = OneHotEncoder("ignore").fit(rows.select(["country"]))
    assert project.fitted.load("countries").transformer == encoder


def test_wrong_use_is_reported_with_what_helps(project: Project) -> None:
    fit = ("fit", "standard_scaler", "--view", "retail_statistics")
    assert "pass exactly one of --columns and --features" in run(*fit, code=2).output
    assert "unknown transformer 'scaler'; available: " in run(
        "fit", "scaler", "--view", "retail_statistics", "--columns", "amount", code=2
    ).output  # fmt: skip
    assert "--follow reads new data" in run(
        *fit, "--columns", "amount", "--follow", "--as-of", CUT, code=2
    ).output  # fmt: skip
    assert "unknown column 'cost' of view 'retail_statistics'" in run(
        *fit, "--columns", "cost", code=2
    ).output  # fmt: skip
    assert "has no keys, and therefore no features of entities" in run(
        *fit, "--features", "count_amount", code=2
    ).output  # fmt: skip
    assert "pf.statistics_view(..., retail, [pf.Numbers(\"unit_price\")])" in run(
        "fit", "standard_scaler", "--view", "customer_spend", "--columns", "unit_price",
        "--from", "tiles", code=2,
    ).output  # fmt: skip
    assert "--set x: expected KEY=VALUE" in run(
        *fit, "--columns", "amount", "--set", "x", code=2
    ).output  # fmt: skip
    assert "has no keys: it aggregates all events" in run(
        "materialize", "retail_statistics", code=2
    ).output  # fmt: skip


def test_each_commit_of_tiles_gives_a_version_and_its_drift(
    project: Project, log: pa.Table
) -> None:
    view = project.definitions.view("retail_statistics")
    table = view.compiled.table(1)
    later = pq.read_table(RETAIL / "data" / "online_retail.parquet").slice(ROWS, 40)
    dear = later.set_column(
        later.schema.get_field_index("unit_price"), "unit_price",
        pc.multiply(later["unit_price"], 20.0),
    )  # fmt: skip

    def commit_tiles() -> None:
        """As the tile job does: each commit when the one before has its version."""
        for number, rows in enumerate((later, dear), 1):
            while len(fitted_versions(project.lake, "scaler")) < number:
                time.sleep(0.05)
            tiles = tile_table(view, event_rows(rows.select(list(view.source.schema))))
            append_arrow(project.lake, table, tiles)

    job = threading.Thread(target=commit_tiles, daemon=True)
    job.start()
    reported = run("fit", "standard_scaler", "--view", "retail_statistics", "--columns",
               "unit_price,quantity", "--name", "scaler", "--follow", "--commits", "3",
               "--every", "0.1")  # fmt: skip
    job.join()
    lines = reported.output.splitlines()
    assert f"following {table}" in reported.output
    versions = [line for line in lines if line.startswith("scaler v")]
    assert [line.split(":")[0] for line in versions] == ["scaler v1", "scaler v2", "scaler v3"]
    drifts = [line for line in lines if "since v1, unit_price: PSI" in line]
    small, large = (float(line.split("PSI ")[1].split()[0]) for line in drifts)
    assert small < large
    assert "since v1, quantity: drift is unknown" in reported.output
    # a fit that is not possible yields no version, and does not end it
    reported = run("fit", "one_hot_encoder", "--view", "retail_statistics", "--columns", "country",
               "--name", "countries", "--follow", "--commits", "1")  # fmt: skip
    assert "no version of this commit: column 'country' has" in reported.output
    assert fitted_versions(project.lake, "countries") == []
    rows = members(pa.concat_tables([log, later, dear], promote_options="permissive"))
    expected = StandardScaler().fit(rows.select(["unit_price", "quantity"]))
    found = project.fitted.load("scaler", 3).transformer
    assert isinstance(found, StandardScaler)
    assert found.var_ == pytest.approx(expected.var_, rel=1e-10)


@pytest.mark.redis
def test_a_version_of_fit_is_pinned_served_and_verified(
    project: Project, log: pa.Table, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAIMON_FEATURES_ONLINE_URL", redis_url)
    run("fit", "standard_scaler", "--view", "customer_spend", "--features",
        "sum_amount_30d,count_30d", "--name", "spend_scaler", "--export")  # fmt: skip
    version = project.fitted.load("spend_scaler", 1)
    with Path("features.py").open("a") as file:
        file.write(PINNED)
    run("apply")
    run("materialize", "customer_spend")
    pinned = Project.open(".")
    now = version.fitted_on["at_ms"]
    rows = pa.table({"customer_id": [17850, 13047], "event_time_ms": [now, now]})
    plain = pinned.get_historical_features(
        ["customer_spend:sum_amount_30d", "customer_spend:count_30d"], rows
    )
    matrix = np.column_stack([plain[name].to_numpy() for name in plain.column_names[2:]])
    expected = version.transformer.transform(matrix.astype(np.float64)).tolist()
    assert pinned.get_historical_features("model", rows)["scaled"].to_pylist() == expected
    online = pinned.get_online_features("model", {"customer_id": [17850, 13047]}, now)
    assert online.table["scaled"].to_pylist() == expected
    built = pinned.build_training_set("model", "model", rows)
    reported = json.loads(
        table_options.properties(pinned.lake, built.table)["training-set.transformed"]
    )
    assert reported["scaled"]["fitted"]["digest"] == version.digest
    report = verify(pinned, "model", wait_s=0, settle_s=0)
    assert report.ok, report.differences
    # of all entities that were known, each once, at one time
    customers = sorted(set(log["customer_id"].drop_null().to_pylist()))
    rows = pa.table({"customer_id": customers, "event_time_ms": [now] * len(customers)})
    every = pinned.get_historical_features(
        ["customer_spend:sum_amount_30d", "customer_spend:count_30d"], rows
    )
    assert StandardScaler().fit(every.select([2, 3])).to_params() == version.transformer.to_params()
