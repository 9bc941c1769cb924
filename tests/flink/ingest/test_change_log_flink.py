"""A changelog, from a table through events and tiles to Redis: features equal the table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from paimon_features.core.errors import ConfigurationError, JobError, UnknownNameError
from paimon_features.flink.environment import open_environment, register_lake
from paimon_features.ingest.flink.topic import ingest_change_log
from paimon_features.lake import Lake, read_arrow
from paimon_features.online.materialize import Materializer
from paimon_features.project import Project
from paimon_features.project.verification.parity import verify
from paimon_features.testing.reference.features import answer
from paimon_features.testing.servers.redis_server import RedisServer
from paimon_features.tiles.flink.submission import submit
from paimon_features.tiles.jobs.target import TileTarget
from tests.patient_stores import PATIENT_TOML

pytestmark = [pytest.mark.flink, pytest.mark.redis]

FEATURES = """
import paimon_features as pf

orders = pf.EventSource(
    "orders",
    schema={
        "order_id": pf.Int64,
        "customer_id": pf.Int64,
        "amount": pf.Decimal(10, 2),
        "at_ms": pf.Int64,
        "op": pf.String,
    },
    event_time="at_ms",
    retraction="op",
)
spend = pf.FeatureView(
    "spend",
    source=orders,
    entity=pf.Entity("customer", keys={"customer_id": pf.Int64}),
    features=[
        pf.Count(),
        pf.Sum("amount", windows=["1h", "7d"]),
        pf.Mean("amount"),
        pf.StdDev("amount"),
        pf.DecayedSum("amount", half_life="1h", windows=["7d"]),
    ],
)
"""
COLUMNS = "(order_id BIGINT, customer_id BIGINT, amount DECIMAL(10, 2), at_ms BIGINT"


@pytest.fixture
def project(tmp_path: Path, redis_server: RedisServer) -> Project:
    (tmp_path / "features.py").write_text(FEATURES)
    (tmp_path / "paimon-features.toml").write_text(
        f'[project]\nname = "changes"\n[online]\nurl = "{redis_server.url}"\n{PATIENT_TOML}'
        '[flink]\ncheckpoint_interval = "200ms"\n'
    )
    opened = Project.open(tmp_path)
    opened.apply()
    return opened


Sql = Callable[[str], None]


@pytest.fixture
def sql(project: Project) -> Sql:
    """Changes a table ``shop.orders`` of the warehouse, like another program."""
    env = open_environment("batch", 1, state_dir=project.config.state_dir)
    register_lake(env, project.lake)
    env.execute_sql("CREATE DATABASE shop")
    env.execute_sql(
        f"CREATE TABLE shop.orders {COLUMNS}, PRIMARY KEY (order_id) NOT ENFORCED) "
        "WITH ('bucket' = '1', 'changelog-producer' = 'lookup')"
    )
    env.execute_sql(f"CREATE TABLE shop.silent {COLUMNS}, PRIMARY KEY (order_id) NOT ENFORCED)")
    return lambda text: env.execute_sql(text).wait()


def test_after_every_kind_of_change_features_equal_those_of_the_table(
    project: Project, sql: Sql
) -> None:
    source, lake = project.definitions.source("orders"), project.lake
    spend = project.definitions.view("spend")

    def ingest() -> None:
        ingest_change_log(
            lake,
            source,
            "shop.orders",
            state_dir=project.config.state_dir,
            bounded=True,
            checkpoint_interval_ms=200,
        )

    sql(
        "INSERT INTO shop.orders VALUES (1, 7, 10.50, 0), (2, 7, 20.25, 60000), (3, 8, 1.10, 0), "
        "(4, 9, 5, 3600000), (5, 9, 6, 3600000), (6, CAST(NULL AS BIGINT), 1, 0)"
    )
    ingest()
    sql("DELETE FROM shop.orders WHERE order_id IN (3, 5)")
    #                                another amount  another time        another customer  new
    sql(
        "INSERT INTO shop.orders VALUES (1, 7, 11.50, 0), (2, 7, 20.25, -9), (4, 8, 5, 3600000), "
        "(8, 9, 2.10, 5)"
    )
    ingest()
    kinds = Counter(read_arrow(lake, source.table).column("op").to_pylist())
    assert kinds == {"+I": 7, "-D": 2, "-U": 3, "+U": 3}

    submit(TileTarget.of(project, "spend"), bounded=True)
    worker = Materializer(
        lake,
        project.name,
        spend.compiled,
        lambda: project.generation(spend.compiled),
        project.store,
        lease_ttl_ms=None,
    )
    assert worker.run_once().caught_up
    shop = Lake.open(lake.warehouse, "shop")
    rows = [{**row, "op": "+I"} for row in read_arrow(shop, "orders").to_pylist()]
    names = ("count", "sum_amount_1h", "sum_amount_7d", "mean_amount", "stddev_amount")
    customers = [7, 8, 9]
    emptied = {**dict.fromkeys(names), "count": 0, "sum_amount_1h": 0.0, "sum_amount_7d": 0.0}
    for as_of_ms in (60_001, 3_600_001, 7_300_000):
        got = project.get_online_features(
            "spend", {"customer_id": customers}, as_of_ms=as_of_ms
        ).table
        for row in got.to_pylist():
            mine = [r for r in rows if r["customer_id"] == row["customer_id"]]
            expected = answer(spend, mine, as_of_ms, online=True)
            # a customer without rows is still known by the times of the retracted ones
            values = emptied if expected.status == "MISSING" else expected.values
            assert {name: row[name] for name in names} == {name: values[name] for name in names}
            decayed = "decayed_sum_amount_h1h_7d"
            assert row[decayed] == pytest.approx(values.get(decayed, 0.0), rel=1e-12)
    assert verify(project, "spend", settle_s=0, wait_s=0).ok


def test_rows_from_before_the_change_log_are_in_or_reported(project: Project, sql: Sql) -> None:
    #  rows        1, 2 without a log | log on | compacted: 1, 2 are in the log | 3
    #  bounded run                         error                               in    in
    source, lake = project.definitions.source("orders"), project.lake

    def ingest() -> None:
        ingest_change_log(
            lake,
            source,
            "shop.silent",
            state_dir=project.config.state_dir,
            bounded=True,
            checkpoint_interval_ms=200,
        )

    sql("ALTER TABLE shop.silent SET ('bucket' = '1', 'write-only' = 'true')")
    sql("INSERT INTO shop.silent VALUES (1, 7, 10.50, 0), (2, 7, 20.25, 60000)")
    sql("ALTER TABLE shop.silent SET ('changelog-producer' = 'lookup')")
    with pytest.raises(JobError, match="2 rows of the table are not among the events.*compact"):
        ingest()
    sql("CALL sys.compact(`table` => 'shop.silent')")
    ingest()
    assert sorted(read_arrow(lake, source.table).column("order_id").to_pylist()) == [1, 2]


def test_tables_without_changelog_and_sources_without_retraction_are_rejected(
    project: Project, sql: Sql
) -> None:
    source = project.definitions.source("orders")
    for table, mapping, error, message in (
        ("shop.silent", {}, ConfigurationError, "'none', so it does not contain the replaced rows"),
        ("shop.gone", {}, UnknownNameError, "'gone'; available: orders, silent"),
        ("mall.orders", {}, UnknownNameError, "unknown database 'mall'"),
        ("shop.orders", {"op": "x"}, ConfigurationError, "filled from the kind of each change"),
        ("shop.orders", {"amount": "x"}, ConfigurationError, "shop.orders: unknown column 'x'"),
    ):
        with pytest.raises(error, match=message):
            ingest_change_log(
                project.lake, source, table, mapping, state_dir=project.config.state_dir
            )
