"""``status``: one screen for a project, whatever of it responds."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paimon_features.core.process.ports import free_ports
from paimon_features.core.times.clock import now_ms
from paimon_features.core.windows import DAY_MS, HOUR_MS
from paimon_features.lake import append_arrow, read_arrow
from paimon_features.lake.ownership import claims, lease
from paimon_features.lake.ownership.lease import ProcessHolder, acquire
from paimon_features.lake.table_folders import lease_folder
from paimon_features.project.status import StatusReader
from paimon_features.project.status.job_status import JobStatus
from tests.project.operations.conftest import Shop

PAGE = Path(__file__).parents[3] / "docs/how-to/data/status.md"
pytestmark = pytest.mark.redis


def by(rows: list[dict[str, Any]], key: str) -> dict[str, dict[str, Any]]:
    return {row[key]: row for row in rows}


def test_a_project_without_trouble_needs_no_attention(served: Shop) -> None:
    shop = served
    found = shop.json("status")
    assert found["format"] == 1
    assert (found["ok"], found["attention"]) == (True, [])
    assert found["online"]["reachable"]
    assert {(job["view"], job["kind"], job["state"]) for job in found["jobs"]} == {
        ("spend", "backfill", "STOPPED"),
        ("lands", "backfill", "STOPPED"),
        ("pairs", "backfill", "STOPPED"),
    }
    spend = by(found["views"], "view")["spend"]
    assert spend["applied_snapshot"] == spend["committed_snapshot"] == 1
    assert spend["newest_applied_snapshot"] == 1
    assert spend["lag_snapshots"] == 0
    assert spend["high_mark_ms"] == shop.now_ms - 1_000
    assert spend["low_mark_ms"] == shop.now_ms - HOUR_MS  # of customer 2, in a bucket of its own
    sales = by(found["rejected"], "table")["rejected_sales"]
    assert (sales["held"], sales["released"], sales["rejected"]) == (2, 0, {})
    events = by(found["tables"], "table")["events_sales"]
    assert (events["rows"], events["snapshots"], events["newest_snapshot"]) == (8, 1, 1)
    assert events["files"] == 2  # one for each day
    assert 0 < events["bytes"] < 100_000
    assert found["leases"] == []
    assert "nothing needs attention" in shop.run("status").output


def test_the_document_has_the_documented_fields(served: Shop) -> None:
    shop = served
    with acquire(shop.project.lake, "events_sales"):
        found = shop.json("status")
    reference = PAGE.parents[2] / "reference" / "status.md"
    page = PAGE.read_text("utf-8") + reference.read_text("utf-8")
    for name, value in found.items():
        assert f"`{name}`" in page
        rows = value if isinstance(value, list) else [value] if isinstance(value, dict) else []
        for row in rows:
            for field in row if isinstance(row, dict) else ():
                assert f"`{field}`" in page, (name, field)


def test_a_view_that_lags_shows_its_snapshots(served: Shop) -> None:
    shop = served
    shop.sell([(1, "FR", 1, -10)])
    shop.run("backfill", "spend", "--rebuild")
    found = shop.json("status", code=1)
    spend = by(found["views"], "view")["spend"]
    assert spend["lag_snapshots"] is None
    assert "incarnation 0" in spend["problem"]
    assert any("view spend" in text for text in found["attention"])
    shop.run("materialize")
    assert shop.json("status")["ok"]


def test_an_unreachable_store_is_reported_in_its_line(shop: Shop) -> None:
    address = os.environ["PAIMON_FEATURES_ONLINE_URL"].removesuffix("/0")
    found = shop.json("status", code=1)
    assert not found["online"]["reachable"]
    assert found["online"]["where"] == address
    assert by(found["views"], "view")["spend"]["committed_snapshot"] == 1
    assert by(found["tables"], "table")["events_sales"]["rows"] == 8
    assert f"online store {address}" in shop.run("status", code=1).output
    assert shop.json("status", "--no-online")["online"] is None


def test_an_unreachable_cluster_is_reported_in_its_line(shop: Shop) -> None:
    from paimon_features.lake.side_folder import generations

    lake = shop.project.lake
    job = {**(generations.get(lake, "spend", 1).job or {})}
    gone = f"http://127.0.0.1:{free_ports(1)[0]}"
    job |= {"kind": "stream", "engine": "flink", "local": False, "rest": gone, "process": None}
    job.pop("state")
    generations.update(lake, "spend", 1, job=job)
    found = shop.json("status", "--no-online", code=1)
    assert by(found["jobs"], "view")["spend"]["state"] == "UNKNOWN"
    assert [text for text in found["attention"] if gone in text]


def test_owners_have_a_heartbeat_age_and_dead_ones_need_attention(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = shop.project.lake
    me = ProcessHolder.current()
    unseen = replace(me, boot="another machine")
    monkeypatch.setattr(claims, "BEAT_S", 0.02)
    acquire(lake, "events_sales", unseen)._forget()  # as if it was killed
    beat = str(lease_folder(lake, "events_sales"))
    with acquire(lake, "rejected_sales", me, "ingest"):
        found = by(shop.json("status", "--no-online")["leases"], "table")
        assert found["rejected_sales"]["liveness"] == "alive"
        assert found["events_sales"]["liveness"] == "unknown"
        assert found["events_sales"]["heartbeat_age_s"] < 30
        for name in os.listdir(beat):
            old_s = shop.now_ms / 1_000 - 60
            os.utime(os.path.join(beat, name), (old_s, old_s))
        silent = shop.json("status", "--no-online", code=1)
    assert by(silent["leases"], "table")["events_sales"]["heartbeat_age_s"] > 30
    assert [text for text in silent["attention"] if text.startswith("lease of events_sales")]
    lease.release(lake, "events_sales")
    assert shop.json("status", "--no-online")["ok"]


def test_a_definitions_file_that_does_not_run_hides_nothing_else(shop: Shop) -> None:
    (shop.folder / "features.py").write_text("1 / 0")
    found = shop.json("status", "--no-online", code=1)
    assert any("ZeroDivisionError" in text for text in found["attention"])
    assert by(found["tables"], "table")["events_sales"]["rows"] == 8


def test_a_lost_record_and_a_damaged_table_need_attention(shop: Shop) -> None:
    lake = shop.project.lake
    (lake.side_folder / "generations" / "features.spend.json").unlink()
    snapshot = f"{lake.path('events_sales')}/snapshot/snapshot-1"
    with open(snapshot, "w", encoding="utf-8") as file:
        file.write("{")
    found = shop.json("status", "--no-online", code=1)
    assert any("record" in text and "spend" in text for text in found["attention"])
    assert "damaged" in by(found["tables"], "table")["events_sales"]["error"]
    assert by(found["views"], "view")["lands"]["committed_snapshot"] == 1


def test_many_rejected_rows_are_not_read(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    from paimon_features.project.status import tables

    monkeypatch.setattr(tables, "COUNTED_ROWS", 1)
    found = by(shop.json("status", "--no-online")["rejected"], "table")["rejected_sales"]
    assert (found["rows"], found["held"]) == (2, None)


def test_released_events_are_not_held_any_more(shop: Shop) -> None:
    from paimon_features.ingest.release import count_rejected, release_due

    project = shop.project
    sales = project.definitions.sources["sales"]
    release_due(project.lake, sales, shop.now_ms + 9 * DAY_MS)
    counts = count_rejected(project.lake, "rejected_sales")
    assert (counts.held, counts.released, dict(counts.rejected)) == (1, 1, {})


def test_watch_redraws_until_ctrl_c_and_loads_no_engine(shop: Shop) -> None:
    engines = "{'pyflink', 'duckdb', 'torch'}"
    shown = f"import sys; print('engines:', sorted({engines} & set(sys.modules)))"
    code = f"from paimon_features.cli import main\ntry: main()\nfinally:\n {shown}"
    command = [sys.executable, "-c", code, "status", "--watch", "--every", "0.1"]
    with subprocess.Popen(
        command, cwd=shop.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        seen = 0
        for line in process.stdout:
            seen += line.startswith("project shop at ")
            if seen == 3:
                break
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait() == 0, rest
    assert "Traceback" not in rest
    assert rest.rstrip().endswith("engines: []")


def test_watch_is_not_for_programs(shop: Shop) -> None:
    assert "--watch draws" in shop.run("status", "--watch", "--json", code=2).output


def test_each_view_says_what_keeps_it_from_being_served(served: Shop) -> None:
    """All in one document: none of them hides another."""
    shop = served
    file = shop.folder / "features.py"
    source = file.read_text()
    file.write_text(source.replace('"spend", source', '"spent", source'))
    store = shop.project.store
    keys = [key for page in store.scan(b"") for key in page]
    store.delete([key for key in keys if b":lands:" in key and key.endswith(b"#marker")][:1])
    found = by(shop.json("status", code=1)["views"], "view")
    assert found["spend"]["problem"] == "it is not in the definitions file any more"
    assert found["spent"]["problem"] == "it is not applied; run 'paimon-features apply'"
    assert "the online store has lost 1 of " in found["lands"]["problem"]
    assert found["pairs"]["problem"] is None
    shown = StatusReader(shop.project).read()._repr_html_()
    for text in ("Project shop", "needs attention", "view spent: it is not applied", "tiles_pairs"):
        assert text in shown


def test_a_view_with_nothing_behind_needs_no_attention_however_long_ago_it_was_materialized(
    served: Shop,
) -> None:
    later = StatusReader(served.project, clock=lambda: now_ms() + HOUR_MS).read()
    views = {view.view: view for view in later.views if view.current_ms is not None}
    assert views
    for view in views.values():
        assert (view.lag_snapshots, view.behind) == (0, False)
        assert view.attention is None or "nothing is behind" in view.attention


def test_a_view_behind_its_tiles_needs_attention_as_time_passes(served: Shop) -> None:
    project = served.project
    rows = read_arrow(project.lake, "tiles_lands_g1").slice(0, 1)
    append_arrow(project.lake, "tiles_lands_g1", rows)
    later = StatusReader(project, clock=lambda: now_ms() + HOUR_MS).read()
    [lands] = [view for view in later.views if view.view == "lands"]
    assert (lands.committed_snapshot, lands.applied_snapshot, lands.lag_snapshots) == (2, 1, 1)
    attention = [text for text in later.attention if text.startswith("view lands: ")]
    assert re.fullmatch(
        r"view lands: 3,6\d\d s behind its tile table; its materializer has stopped or is too slow",
        attention[0],
    )


def test_a_job_that_has_ended_or_has_no_checkpoint_needs_attention() -> None:
    job = JobStatus(
        view="spend", generation=2, kind="stream", job_id="a", state="RUNNING", where="flink:8081",
        since_ms=0, snapshot=1, committed_checkpoint=None, lag_snapshots=0, checkpoint=None,
        checkpoint_ms=None, restarts=0, last_error=None,
    )  # fmt: skip
    for changes, expected in (
        ({}, "job of spend g2: no checkpoint for more than 5 minutes"),
        ({"checkpoint_ms": HOUR_MS - 1}, None),
        ({"kind": "backfill"}, None),
        ({"state": "RESTARTING", "last_error": "disk full"},
         "job of spend g2: RESTARTING: disk full"),
        ({"state": "LOST"}, "job of spend g2: LOST; 'paimon-features submit spend --resume' "
         "continues from its last checkpoint"),
        ({"state": "UNKNOWN"}, "job of spend g2: its cluster flink:8081 does not respond"),
    ):  # fmt: skip
        assert replace(job, **changes).attention(HOUR_MS) == expected
