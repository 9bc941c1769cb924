"""The demo, which processes a retail log on every path, compared with one DuckDB query.

``make test-long`` takes the last hundred days of the log; ``make chaos``, which sets
``PAIMON_FEATURES_KILLS``, and ``make demo`` take all of it.

::

    file --ingest--> events --backfill, submit--> tiles --materialize--> Redis
      |                                             |                      |
      |                                          offline                 online
      +------------------- DuckDB ----------------- = -------------------- =
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from paimon_features.core.windows import DAY_MS, HOUR_MS
from paimon_features.lake import append_arrow, read_arrow
from paimon_features.project import Project
from paimon_features.project.verification.parity import verify
from paimon_features.testing.servers.redis_server import RedisServer
from tests.commands import run
from tests.os_processes import processes_of
from tests.serving.ui.chromium import Chromium
from tests.waiting import await_true

RETAIL = Path(__file__).parents[1] / "examples" / "retail"
WHOLE_LOG = RETAIL / "data" / "online_retail.parquet"
DAYS = None if "PAIMON_FEATURES_KILLS" in os.environ else 100
"""The newest days of the log that are processed; None: all."""
BATCHES = 40 if DAYS is None else 8
"""Commits of what is streamed; each is waited for until it can be looked up."""
SERVICE = "will_buy_v1"
VIEW = "customer_spend"

pytestmark = [
    pytest.mark.flink,
    pytest.mark.redis,
    pytest.mark.timeout(600),
    pytest.mark.long,
]

RUN = """
import runpy, sys
from pathlib import Path
script, into, log = map(Path, sys.argv[1:4])
runpy.run_path(str(script))["main"](into, log, batches=int(sys.argv[4]))
"""

QUERY = """
WITH log AS (
    SELECT customer_id, invoice_time_ms AS t, quantity, unit_price, country,
           CAST(round_even(quantity * unit_price * 100, 0) AS HUGEINT) AS cents
    FROM events WHERE customer_id IS NOT NULL
),
starts AS (
    SELECT *, (q - 1 * 86400000::BIGINT) // 3600000 * 3600000 AS d1,
           (q - 7 * 86400000::BIGINT) // 3600000 * 3600000 AS d7,
           (q - 30 * 86400000::BIGINT) // 86400000 * 86400000 AS d30,
           (q - 90 * 86400000::BIGINT) // 86400000 * 86400000 AS d90,
           (q - 180 * 86400000::BIGINT) // 86400000 * 86400000 AS d180
    FROM requested
)
SELECT n, max(t) AS newest, any_value(d180) AS known_from, any_value(q) AS q,
    count(*) FILTER (t >= d1) AS count_1d,
    count(*) FILTER (t >= d7) AS count_7d,
    count(*) FILTER (t >= d30) AS count_30d,
    count(*) FILTER (t >= d90) AS count_90d,
    coalesce(sum(cents) FILTER (t >= d1), 0) / 100.0 AS sum_amount_1d,
    coalesce(sum(cents) FILTER (t >= d30), 0) / 100.0 AS sum_amount_30d,
    coalesce(sum(cents) FILTER (t >= d90), 0) / 100.0 AS sum_amount_90d,
    sum(CAST(round_even(unit_price * 100, 0) AS HUGEINT)) FILTER (t >= d30)
        / (100.0 * count(*) FILTER (t >= d30)) AS mean_unit_price_30d,
    stddev_pop(quantity) FILTER (t >= d90) AS stddev_quantity_90d,
    max(cents) FILTER (t >= d90) / 100.0 AS max_amount_90d,
    coalesce(sum(pow(2.0, (t - q) / 1209600000)) FILTER (t >= d180), 0) AS decayed_count_h14d_180d,
    coalesce(sum(quantity * unit_price * pow(2.0, (t - q) / 2592000000)) FILTER (t >= d180), 0)
        AS decayed_sum_amount_h30d_180d,
    count(*) FILTER (t >= d90 AND quantity < 0) AS cancellations_90d,
    max(lpad(CAST(t AS VARCHAR), 15, '0') || country) FILTER (t >= d180) AS last
FROM starts JOIN log ON log.customer_id = starts.customer_id AND t < {end}
GROUP BY n ORDER BY n
"""

EXACT = (
    "count_1d", "count_7d", "count_30d", "count_90d", "cancellations_90d",
    "sum_amount_1d", "sum_amount_30d", "sum_amount_90d", "max_amount_90d", "mean_unit_price_30d",
)  # fmt: skip
CLOSE = ("stddev_quantity_90d", "decayed_count_h14d_180d", "decayed_sum_amount_h30d_180d")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that the demo processes."""
    if DAYS is None:
        return WHOLE_LOG
    rows = pq.read_table(WHOLE_LOG)
    newest = pc.max(rows["invoice_time_ms"]).as_py()
    first = (newest // DAY_MS + 1 - DAYS) * DAY_MS
    path = tmp_path_factory.mktemp("log") / "online_retail.parquet"
    pq.write_table(rows.filter(pc.greater_equal(rows["invoice_time_ms"], first)), path)
    return path


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory, log: Path) -> Path:
    """The folder that the demo left; it ingests, backfills and streams the log."""
    root = tmp_path_factory.mktemp("retail") / "demo"
    words = [sys.executable, "-c", RUN, str(RETAIL / "run.py"), str(root), str(log), str(BATCHES)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (root / "output.txt").write_text(done.stdout)
    return root


@pytest.fixture(scope="module")
def project(demo: Path) -> Iterator[Project]:
    """The demo's project, with a new and empty online store that is filled from the lake."""
    with RedisServer() as server:
        settings = demo / "paimon-features.toml"
        text = re.sub(r'(?m)^url = ".*"$', f'url = "{server.url}"', settings.read_text())
        settings.write_text(text)
        run("materialize", VIEW, "--once", project=demo)
        yield Project.open(demo)


def expected(log: Path, requested: pa.Table, end: str) -> list[dict[str, object]]:
    """What DuckDB makes of the file itself, for the rows (n, customer_id, q)."""
    with duckdb.connect() as connection:
        connection.execute("SET threads = 2")
        connection.register("requested", requested)
        connection.execute(f"CREATE VIEW events AS SELECT * FROM '{log}'")
        found = connection.sql(QUERY.format(end=end)).to_arrow_table().to_pylist()
    answers: list[dict[str, object]] = [{} for _ in range(requested.num_rows)]
    for row in found:
        known = row["newest"] >= row["known_from"] and row["newest"] >= row["q"] - 180 * DAY_MS
        if known:
            answers[row["n"]] = {**row, "last_country_180d": row["last"][15:]}
    return answers


def assert_equal(rows: list[dict[str, object]], wanted: list[dict[str, object]]) -> None:
    assert len(rows) == len(wanted)
    for row, want in zip(rows, wanted, strict=True):
        for name in (*EXACT, "last_country_180d"):
            assert row[name] == want.get(name), (name, row, want)
        for name in CLOSE:
            if want.get(name) is None:
                assert row[name] is None, (name, row, want)
            else:
                assert row[name] == pytest.approx(want[name], rel=1e-9, abs=1e-9), (name, row)
        month, quarter = want.get("sum_amount_30d"), want.get("sum_amount_90d")
        pace = None if month is None else month / quarter if quarter else 0.0  # type: ignore[operator]
        assert row["spend_pace"] == pace, (row, want)


def some_rows(log: Path, seed: int, size: int) -> pa.Table:
    """Customers at random times: anywhere, on tile and hop edges, at their own events."""
    rng = np.random.default_rng(seed)
    events = duckdb.sql(
        f"SELECT customer_id, invoice_time_ms AS t FROM '{log}' WHERE customer_id IS NOT NULL"
    ).to_arrow_table()
    picked = events.take(rng.integers(0, len(events), size))
    own = picked["t"].to_numpy()
    anywhere = rng.integers(own.min(), own.max() + 200 * DAY_MS, size)
    kinds = [
        own,
        own + 1,
        anywhere,
        anywhere // HOUR_MS * HOUR_MS,
        anywhere // DAY_MS * DAY_MS,
        own // 300_000 * 300_000,
        own + 180 * DAY_MS,
    ]
    q = np.choose(rng.integers(0, len(kinds), size), kinds)
    return pa.table({"n": np.arange(size), "customer_id": picked["customer_id"], "q": q})


def test_the_demo_shows_what_it_did_and_leaves_no_process(demo: Path, log: Path) -> None:
    reported = (demo / "output.txt").read_text()
    assert len(reported.splitlines()) < 80
    times = pq.read_table(log, columns=["invoice_time_ms"])["invoice_time_ms"]
    # all but the last four weeks are ingested from a file; those are written as a stream
    cut = (pc.max(times).as_py() // DAY_MS + 1 - 28) * DAY_MS
    ingested = pc.sum(pc.less(times, cut)).as_py()
    assert DAYS is not None or ingested == 461_207
    for part in (
        f"{ingested:,} events",
        "1 too_few_columns",
        "all agree",
        "epoch 2: loss",
        "neither has seen: promoted",
        "from the same server",
        "report.html",
    ):
        assert part in reported
    await_true(lambda: processes_of(demo) == [])


def test_the_model_has_learned_from_the_outcomes_of_its_predictions(
    demo: Path, project: Project, log: Path
) -> None:
    facts = facts_of(demo / "report.html")
    circle = facts["circle"]
    first, second = circle["answers"]
    assert (first["version"], second["version"]) == (1, 2)
    assert first["predictions"] != second["predictions"]
    # each prediction is in the lake once, each outcome is the next week in the log
    logged = read_arrow(project.lake, "predictions_will_buy", ["version", "as_of_ms"])
    assert len(logged) == circle["predictions"] > circle["outcomes"] > 300
    outcomes = read_arrow(
        project.lake, "outcomes_will_buy", ["customer_id", "event_time_ms", "label"]
    )
    with duckdb.connect() as connection:
        connection.register("outcomes", outcomes)
        agreeing = connection.sql(
            f"""
            SELECT count(*) FROM outcomes o WHERE (o.label = 1) = EXISTS (
                SELECT 1 FROM '{log}' e WHERE e.customer_id = o.customer_id AND e.quantity > 0
                AND e.invoice_time_ms >= o.event_time_ms
                AND e.invoice_time_ms < o.event_time_ms + {7 * DAY_MS})
            """
        ).fetchall()
    assert agreeing == [(circle["outcomes"],)]
    # the gate's decision, and that offline scores are those that were served
    states = project.models.states("will_buy")
    assert states.production is not None
    assert states.production.version == 2
    assert circle["gate"]["high"] < 0
    assert circle["compared"] >= 2 * len(circle["customers"])
    assert circle["largest"] < 1e-6


def facts_of(report: Path) -> Any:
    """What a report shows."""
    found = re.search(r'<script type="application/json" id="facts">(.*?)</script>',
                      report.read_text(), re.DOTALL)  # fmt: skip
    assert found is not None
    return json.loads(found[1])


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH")
def test_the_report_draws_itself_from_one_file(demo: Path, tmp_path: Path) -> None:
    assert CHROMIUM is not None
    facts = facts_of(demo / "report.html")
    with Chromium(CHROMIUM, tmp_path / "profile") as browser:
        # a folder with nothing else in it: what the page refers to would be missing
        shutil.copy(demo / "report.html", tmp_path)
        browser.open(f"file://{tmp_path / 'report.html'}")
        points = "document.querySelectorAll('.plot .point:not(.hot)').length"
        assert browser.run(points) == len(facts["pairs"]) > 100
        browser.run(
            "(() => { const choice = document.getElementById('feature');"
            " choice.value = 'count_30d'; choice.dispatchEvent(new Event('change'));"
            " document.querySelector('.plot svg').dispatchEvent("
            "new PointerEvent('pointermove', {clientX: 200, clientY: 200})); })()"
        )
        own = [pair for pair in facts["pairs"] if pair[0] == "count_30d"]
        assert browser.run(points) == len(own)
        assert "count_30d: online" in browser.run("document.querySelector('.said').textContent")
        assert browser.run("document.querySelectorAll('.ring li').length") == 8
        # neither an error of the script nor something that the policy refused
        kinds = ("Runtime.exceptionThrown", "Log.entryAdded")
        assert [event for event in browser.events if event["method"] in kinds] == []


def test_every_event_with_a_customer_is_in_one_tile_and_every_other_is_counted(
    project: Project, log: Path
) -> None:
    customers = pq.read_table(log, columns=["customer_id"])["customer_id"]
    assert DAYS is not None or (len(customers), customers.null_count) == (541_909, 135_080)
    tiles = read_arrow(project.lake, "tiles_customer_spend_g1", ["p_rows"])
    skipped = read_arrow(project.lake, "skipped_customer_spend_g1", ["reason", "p_rows"])
    assert pc.sum(tiles["p_rows"]).as_py() == len(customers) - customers.null_count
    assert pc.unique(skipped["reason"]).to_pylist() == ["null_key"]
    assert pc.sum(skipped["p_rows"]).as_py() == customers.null_count


def test_offline_features_equal_duckdb_on_the_raw_file(project: Project, log: Path) -> None:
    requested = some_rows(log, seed=1, size=4_000)
    rows = requested.rename_columns(["n", "customer_id", "event_time_ms"])
    got = project.get_historical_features(SERVICE, rows)
    assert got["n"].to_pylist() == requested["n"].to_pylist()
    assert_equal(got.to_pylist(), expected(log, requested, end="q"))


def test_online_features_equal_duckdb_on_the_raw_file(project: Project, log: Path) -> None:
    customers = duckdb.sql(
        f"SELECT DISTINCT customer_id FROM '{log}' WHERE customer_id IS NOT NULL ORDER BY 1"
    ).to_arrow_table()["customer_id"]
    newest = pc.max(pq.read_table(log, columns=["invoice_time_ms"])["invoice_time_ms"]).as_py()
    # the open tile counts whole
    for q in (newest + 1, newest - HOUR_MS, newest + 40 * DAY_MS):
        requested = pa.table(
            {"n": np.arange(len(customers)), "customer_id": customers,
             "q": np.full(len(customers), q)}
        )  # fmt: skip
        response = project.get_online_features(SERVICE, {"customer_id": customers}, q)
        whole = "(q + 299999) // 300000 * 300000"
        assert_equal(response.to_pylist(), expected(log, requested, end=whole))


def test_verify_agrees_and_finds_a_tile_that_was_tampered_with(project: Project) -> None:
    report = verify(project, SERVICE, sample=25, times=4)
    assert report.ok, report.differences
    assert report.compared > 2_000
    table = project.generation(project.view(VIEW)).table
    tiles = read_arrow(project.lake, table)
    newest = pc.max(tiles["tile_day"]).as_py()
    append_arrow(project.lake, table, tiles.filter(pc.greater(tiles["tile_day"], newest - 30)))
    run("materialize", VIEW, "--once", project=project.root)
    # the sums of the last month count twice from here on
    reported = run(
        "verify", SERVICE, "--sample", "40", "--times", "1", "--wait", "0",
        "--json", project=project.root, code=1,
    ).stdout  # fmt: skip
    differences = json.loads(reported)["differences"]
    assert any(" count_30d: " in text for text in differences), differences
