"""``request-log`` and ``verify --from-log``: what they print, and their exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paimon_features.core.errors import OwnershipError
from paimon_features.definitions import FeatureRef
from paimon_features.lake.ownership.lease import Lease, ProcessHolder, acquire
from paimon_features.lake.specs import served_spec
from paimon_features.online.store import MemoryStore
from paimon_features.serving.reading.fetcher import FeatureFetcher
from tests.clicks import clicks_view
from tests.commands import invoke as run
from tests.os_processes import line_with
from tests.project.verification.shop import NAME, Shop, clock_ms

ROOT = Path(__file__).parents[3]
DEFINITIONS = """
from tests.clicks import clicks_view
view = clicks_view()
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PAIMON_FEATURES_REQUEST_LOG_SALT", raising=False)
    view = clicks_view()
    shop = Shop(tmp_path, [view], MemoryStore())
    (tmp_path / "features.py").write_text(DEFINITIONS)
    now_ms = clock_ms()
    shop.commit(view, [{"user": u, "t": now_ms - u, "n": u, "word": "a"} for u in range(5)])
    shop.materializer(view).run_once()
    refs = [FeatureRef("clicks", f.name) for f in view.compiled.features]
    log = shop.log()
    got = FeatureFetcher(NAME, [view.compiled], shop.store).get(refs, {"user": [1, 2, 9]}, now_ms)
    log.note("r1", "buying_v1", got)
    log.close()
    return shop


def test_rows_are_committed_and_compared(shop: Shop) -> None:
    done = run("request-log")
    assert done.exit_code == 0, done.output
    assert "3 rows of 1 files committed" in done.output
    done = run("request-log", "--json")
    assert json.loads(done.stdout)["rows"] == 0
    done = run("verify", "--from-log", "--since", "1h", "--service", "buying_v1")
    assert done.exit_code == 0, done.output
    assert "18 values of 1 requests compared: all agree (3 of 3 rows with raw events, too)" in (
        done.output
    )
    document = json.loads(run("verify", "--from-log", "--json").stdout)
    assert (document["ok"], document["values"], document["differences"]) == (True, 18, [])


def test_a_difference_is_printed_with_request_entity_feature_and_both_values(shop: Shop) -> None:
    rows = shop.rows()
    values = json.loads(rows[1]["feature_values"])
    rows[1]["feature_values"] = json.dumps({**values, "sum_n_1d": 77})
    shop.write(rows[1:2], "tampered")
    assert run("request-log").exit_code == 0
    done = run("verify", "--from-log")
    assert done.exit_code == 1
    assert "request r1 at" in done.output
    assert "entity [2], clicks:sum_n_1d: served 77, by tiles 2" in done.output
    assert "1 differ" in done.output


def test_what_cannot_be_checked_is_said_and_nothing_compared_is_no_success(shop: Shop) -> None:
    rows = [{**row, "generation": 7} for row in shop.rows()]
    for path in shop.spool.glob("*.arrow"):
        path.unlink()
    shop.write(rows, "old")
    run("request-log")
    done = run("verify", "--from-log")
    assert done.exit_code == 1
    assert "0 values of 1 requests compared: nothing compared" in done.output
    assert "3 rows cannot be checked: generation 7 of 'clicks' is gone" in done.output


def test_wrong_use_is_rejected(shop: Shop, tmp_path: Path) -> None:
    assert run("verify").exit_code == 2
    assert run("verify", "clicks", "--from-log").exit_code == 2
    assert run("verify", "clicks", "--since", "1h").exit_code == 2
    assert "folder not found" in run("request-log", "--folder", "nowhere").output
    config = tmp_path / "paimon-features.toml"
    config.write_text(config.read_text().replace('request_log = "spool"\n', ""))
    done = run("request-log")
    assert done.exit_code == 2
    assert "set [serve] request_log" in done.output
    (shop.spool / "bad.arrow").write_bytes(b"x")
    assert run("request-log", "--folder", str(shop.spool)).exit_code == 1


def acquired_between_passes(shop: Shop, holder: ProcessHolder) -> Lease:
    """The lease of the table, once the follower does not hold it."""
    while True:
        try:
            return acquire(shop.lake, "served_shop", holder, "maintain")
        except OwnershipError:
            time.sleep(0.01)


def test_following_waits_while_another_process_has_the_table(shop: Shop, tmp_path: Path) -> None:
    shop.lake.create(served_spec("served_shop"))
    holder = ProcessHolder.of(os.getppid())
    rows = shop.rows()
    follower = subprocess.Popen(
        [sys.executable, "-m", "paimon_features", "request-log", "--follow", "--poll", "100ms"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert follower.stdout is not None
    assert follower.stderr is not None
    try:
        line_with(follower.stderr, "following")
        line_with(follower.stdout, "3 rows of 1 files committed")
        with acquired_between_passes(shop, holder):
            shop.write(rows, "more")
            line_with(follower.stderr, "tried again in 100ms: table 'served_shop' is owned")
        line_with(follower.stdout, "3 rows of 1 files committed")
    finally:
        follower.terminate()
        follower.communicate(timeout=120)
    assert follower.returncode == 0


def test_a_follower_that_is_stopped_commits_what_servers_left(shop: Shop, tmp_path: Path) -> None:
    rows = shop.rows()
    follower = subprocess.Popen(
        [sys.executable, "-m", "paimon_features", "request-log", "--follow", "--poll", "1h"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        assert follower.stdout is not None
        line_with(follower.stdout, "3 rows of 1 files committed")  # and the next poll is in an hour
        shop.write([{**row, "request_id": "r2"} for row in rows], "left")
        follower.terminate()
        output, _ = follower.communicate(timeout=60)
    finally:
        follower.kill()
    assert "3 rows of 1 files committed" in output
    assert follower.returncode == 0
