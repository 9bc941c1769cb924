"""Maintenance reduces the size of tables without changing their rows."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pyarrow as pa
import pytest
from click.testing import CliRunner

from paimon_features.cli import cli
from paimon_features.core.errors import UnknownNameError
from paimon_features.core.types.schema import Int64
from paimon_features.core.windows import DAY_MS
from paimon_features.lake import append_arrow, read_arrow, table_options
from paimon_features.lake.metadata.consumers import register_consumer
from paimon_features.lake.metadata.snapshots import latest_snapshot, ref_of, snapshot_ids
from paimon_features.lake.ownership.lease import ProcessHolder, acquire
from paimon_features.lake.specs import SERVED_DAY, predictions_spec, training_spec
from paimon_features.models.manifest import TrainingPins
from paimon_features.models.versions_table import load_manifest, register_version
from paimon_features.project import Project
from paimon_features.project.maintenance.tables import maintain, size_of
from paimon_features.tiles.flink.submission import submit
from paimon_features.tiles.jobs.target import TileTarget
from paimon_features.tiles.local import submission as local_backfill
from tests.flink.feed import Feed
from tests.models.networks import manifest, network

pytestmark = pytest.mark.flink


@pytest.mark.long
def test_maintenance_preserves_rows_and_its_job_continues_exactly(
    project: Project, target: TileTarget, feed: Feed
) -> None:
    tiles, events = target.tables[0], target.events
    for run in (local_backfill.backfill, lambda t: submit(t, bounded=True)):
        feed.commit()
        feed.commit()
        run(target)
    before = {table: size_of(target.lake, table).live_files for table in (tiles, events)}
    rows = read_arrow(target.lake, events).num_rows
    held = latest_snapshot(target.lake, events).id - 1  # type: ignore[union-attr]
    register_consumer(target.lake, events, "a-reader", held)
    requested = pa.table({"customer_id": [1, 2, -4], "event_time_ms": [15_047 * DAY_MS] * 3})
    lifetimes = project.get_historical_features(["spend:count"], requested)
    assert project.jobs.roll_up("spend").created > 0
    assert project.get_historical_features(["spend:count"], requested) == lifetimes

    table_options.set_partition_days(
        target.lake, events, 8
    )  # the daily partitions that are there are merged
    done = {m.table: m for m in maintain(project, keep_newest=1)}

    assert all(day % 8 == 0 for day in read_arrow(target.lake, events)["event_day"].to_pylist())
    assert project.get_historical_features(["spend:count"], requested) == lifetimes
    again = project.jobs.roll_up("spend")
    assert again.created == 0 < again.fresh, "compacted days are rolled up again"

    assert not any(m.skipped for m in done.values())
    for table in (tiles, events):
        assert done[table].before.live_files == before[table] > done[table].after.live_files
    assert snapshot_ids(target.lake, events)[0] == held, "a consumer holds what it has to read"
    assert read_arrow(target.lake, events).num_rows == rows
    feed.assert_exact()
    feed.commit()
    submit(target, bounded=True)
    feed.assert_exact()
    tables = {m.table: m for m in maintain(project, [tiles], keep_newest=1)}
    feed.assert_exact()
    assert list(tables) == [tiles]


def test_a_table_written_by_python_is_compacted_to_one_file_and_snapshot(
    project: Project, target: TileTarget, feed: Feed
) -> None:
    row = feed.make(0, 1).append_column("event_day", pa.array([3, 3], pa.int32())[:1])
    for _ in range(60):
        append_arrow(target.lake, target.events, row)
    (done,) = maintain(project, [target.events], keep_newest=1)
    assert done.before.live_files == done.before.snapshots == 60
    assert (done.after.live_files, done.after.snapshots) == (1, 1)
    assert read_arrow(target.lake, target.events).num_rows == 60


@pytest.mark.long
def test_training_sets_keep_what_models_were_trained_on_and_logs_become_small(
    project: Project, target: TileTarget
) -> None:
    lake = project.lake
    lake.create(training_spec("training_churn", {"label": Int64}))
    lake.create(predictions_spec("predictions_churn"))
    lake.create(training_spec("training_other", {"label": Int64}))
    day = pa.table({SERVED_DAY: pa.array([7], pa.int32())})
    empty = lake.schema("predictions_churn")
    prediction = pa.table(
        {f.name: day.column(0) if f.name == SERVED_DAY else pa.nulls(1, f.type) for f in empty}
    )
    for label in range(20):
        for table in ("training_churn", "training_other"):
            append_arrow(lake, table, pa.table({"label": [label]}))
        if label < 3:
            append_arrow(lake, "predictions_churn", prediction)
    trained_on = ref_of(lake, "training_churn", 5)
    pins = TrainingPins("training_churn", trained_on, 5)
    files = {"network.onnx": network(1.0).SerializeToString()}
    register_version(lake, replace(manifest(), training=pins), files, 5)

    done = {m.table: m for m in maintain(project, keep_newest=1)}
    assert not any(m.skipped for m in done.values())
    assert {"models_churn", "predictions_churn", "registry"} <= set(done)
    for table, kept in (("training_churn", 5), ("training_other", 21), ("predictions_churn", 4)):
        assert done[table].after.live_files == 1
        assert snapshot_ids(lake, table)[0] == kept, table
    at = read_arrow(lake, "training_churn", snapshot_id=trained_on)
    assert sorted(at["label"].to_pylist()) == list(range(5))
    assert load_manifest(lake, "churn", 1).training == pins


def test_a_table_with_a_running_writer_is_skipped_and_reported(
    project: Project, target: TileTarget, feed: Feed
) -> None:
    feed.commit()
    with acquire(target.lake, target.events, ProcessHolder.of(os.getppid())):
        result = CliRunner().invoke(
            cli, ["maintain", target.events, "--project", str(project.root), "--json"]
        )
    assert result.exit_code == 1
    (done,) = json.loads(result.stdout)
    assert "is owned by" in done["skipped"]
    assert done["after"] == done["before"]


def test_maintenance_of_an_unknown_table_is_rejected_with_the_known_ones(project: Project) -> None:
    with pytest.raises(UnknownNameError, match="events_retail"):
        maintain(project, ["event_retail"])
