"""``materialize`` and ``lookup``, as a user runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner
from redis import Redis

from paimon_features.cli import cli
from paimon_features.core.windows import DAY_MS, HOUR_MS
from paimon_features.online.materialize import MaterializeProgress, Materializer
from paimon_features.project import Project
from tests.commands import invoke as run
from tests.long_cases import quick_cases
from tests.os_processes import line_with
from tests.servers.online_servers import wait_for
from tests.shop_projects import commit_purchases, purchase, started_shop
from tests.stored import Stored

pytestmark = pytest.mark.redis

NOW = 1_323_432_000_000
AT = "2011-12-09T12:00"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Project:
    events = {12346: [NOW - HOUR_MS], 12347: [NOW - 50 * DAY_MS]}
    return started_shop(tmp_path, redis_url, monkeypatch, events)


def leases(redis_url: str) -> list[bytes]:
    with Redis.from_url(redis_url) as redis:
        return list(redis.scan_iter(match="pf:*#lease"))


def test_tiles_are_materialized_and_looked_up(project: Project) -> None:
    done = run("materialize")
    assert done.exit_code == 0, done.output
    assert "customer_spend: up to date at snapshot 1" in done.output
    done = run("lookup", "churn_v1", "--entity", "customer_id=12346,12347,1", "--as-of", AT)
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[0] == "as of 2011-12-09 12:00:00 UTC"
    keys = [f"customer_id={number}" for number in (12346, 12347, 1)]
    assert lines[1].split() == ["feature", *keys]
    assert lines[2].split() == ["sum_amount_1h", "2.5", "0", "-", "MISSING"]
    assert lines[-1].startswith("customer_spend: snapshot 1, events up to 2011-")


def test_both_speak_json(project: Project) -> None:
    done = run("materialize", "customer_spend", "--json")
    last = json.loads(done.output.splitlines()[-1])
    assert last["view"] == "customer_spend"
    assert last["applied_snapshot"] == 1
    assert last["caught_up"] is True
    done = run(
        "lookup", "customer_spend:sum_amount_30d", "customer_spend:last_country_30d",
        "--entity", "customer_id=12346", "--as-of", str(NOW), "--json",
    )  # fmt: skip
    document = json.loads(done.stdout)
    assert document["rows"] == [
        {"customer_id": 12346, "sum_amount_30d": 2.5, "last_country_30d": "France"}
    ]
    assert document["statuses"] == [{"sum_amount_30d": "PRESENT", "last_country_30d": "PRESENT"}]
    assert document["event_time_ms"] == {"customer_spend": [NOW - HOUR_MS]}
    assert document["freshness"]["customer_spend"]["applied_snapshot"] == 1


def test_a_rebuild_can_be_requested(project: Project) -> None:
    run("materialize")
    done = run("materialize", "--rebuild")
    assert done.exit_code == 0
    assert "rebuilding (requested)" in done.output
    last = json.loads(run("materialize", "--rebuild", "--json").output.splitlines()[-1])
    assert (last["caught_up"], last["tiles"], last["pending"]) == (True, 2, 0)


def test_wrong_use_exits_with_two_and_says_what_is_right(project: Project) -> None:
    for arguments, message in (
        (("materialize", "spend"), "available: customer_spend"),
        (("materialize", "--shard", "4/4"), "0 <= i < n"),
        (("lookup", "churn", "--entity", "customer_id=1"), "available: churn_v1"),
        (("lookup", "churn_v1", "--entity", "customer=1"), "KEY: customer_id"),
        (("lookup", "churn_v1", "--entity", "customer_id=x"), "'x' is not a valid Int64"),
    ):
        done = CliRunner().invoke(cli, arguments)
        assert done.exit_code == 2, (arguments, done.output)
        assert message in done.output


def test_a_lookup_before_anything_is_materialized_says_what_to_run(project: Project) -> None:
    done = CliRunner().invoke(cli, ("lookup", "churn_v1", "--entity", "customer_id=1"))
    assert done.exit_code == 1
    assert "paimon-features materialize customer_spend" in done.output


def test_a_shard_alone_says_that_others_are_missing(project: Project) -> None:
    done = run("materialize", "--shard", "0/2")
    assert done.exit_code == 1
    assert "other shards" in done.output


def test_once_waits_for_a_bucket_that_a_dead_process_holds(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("materialize")
    stored = Stored(project.store, "customer_spend", project.name)
    once = Materializer.run_once

    def lease_for(ttl_ms: int) -> None:
        for marker in stored.markers():
            lease = marker.replace(b"#marker", b"#lease")
            assert project.store.acquire_lease(lease, "dead-host-7", ttl_ms).mine

    def first(self: Materializer) -> MaterializeProgress:
        progress = once(self)
        monkeypatch.setattr(Materializer, "run_once", once)
        lease_for(1)  # expires
        return progress

    lease_for(600_000)
    commit_purchases(project, [purchase(12346, NOW)])
    monkeypatch.setattr(Materializer, "run_once", first)
    done = run("materialize")
    assert done.exit_code == 0, done.output
    assert "customer_spend: waiting for dead-host-7" in done.output
    assert "customer_spend: up to date at snapshot 2" in done.output


def test_once_interrupted_releases_its_leases(
    project: Project, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = Materializer.run_once

    def interrupted(self: Materializer) -> None:
        once(self)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Materializer, "run_once", interrupted)
        done = CliRunner().invoke(cli, ["materialize"])
    assert done.exit_code == 130
    assert "customer_spend: stopped; the next run resumes from here" in done.output
    assert leases(redis_url) == []
    commit_purchases(project, [purchase(12346, NOW)])
    assert run("materialize").exit_code == 0


def test_a_store_that_is_away_is_an_error_that_says_where_it_is_looked_for(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAIMON_FEATURES_ONLINE_URL", "redis://:secret@127.0.0.1:1/0")
    for command in (["materialize"], ["lookup", "churn_v1", "--entity", "customer_id=1"]):
        done = CliRunner().invoke(cli, command)
        assert done.exit_code == 1
        assert "127.0.0.1:1" in done.output
        assert "PAIMON_FEATURES_ONLINE_URL" in done.output
        assert "secret" not in done.output


@pytest.mark.parametrize("number", quick_cases([signal.SIGINT, signal.SIGTERM], signal.SIGTERM))
def test_following_tells_its_health_and_ends_cleanly_on_a_signal(
    project: Project, redis_url: str, number: int
) -> None:
    script = "from paimon_features.cli import main; main()"
    command = [sys.executable, "-c", script, "materialize", "--follow", "--json", "--listen", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    worker = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True
    )
    assert worker.stdout is not None
    assert worker.stderr is not None
    try:
        line_with(worker.stdout, '"caught_up": true')
        address = line_with(worker.stderr, "http://").split()[-1]
        # the line is printed within the pass, health is reported when the pass has ended
        wait_for(lambda: _is_ready(address), "the view is ready")
        commit_purchases(project, [purchase(12346, NOW)])
        line_with(worker.stdout, '"applied_snapshot": 2')
        worker.send_signal(number)
        assert worker.wait(120) == 0
    finally:
        if worker.poll() is None:
            worker.kill()
            worker.wait()
        worker.stdout.close()
        worker.stderr.close()
    assert leases(redis_url) == []
    assert run("materialize").exit_code == 0


def _is_ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/health/ready", timeout=300) as answer:
            ready: bool = json.loads(answer.read())["views"]["customer_spend"]["ready"]
            return ready
    except urllib.error.HTTPError as error:
        if error.code != 503:
            raise
        return False
