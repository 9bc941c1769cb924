"""What maintenance records before snapshots expire: the commits of jobs that were killed."""

from __future__ import annotations

import struct
from pathlib import Path

import pyarrow as pa

from paimon_features.flink.checkpoints import METADATA
from paimon_features.lake import append_arrow
from paimon_features.lake.metadata.snapshots import snapshot_ids
from paimon_features.project import Project
from paimon_features.project.maintenance.tables import record_commits
from paimon_features.tiles.jobs.target import TileTarget

FEATURES = """
import paimon_features as pf

clicks = pf.EventSource("clicks", schema={"user": pf.Int64, "at_ms": pf.Int64}, event_time="at_ms")
spend = pf.FeatureView(
    "spend", source=clicks, entity=pf.Entity("user", keys={"user": pf.Int64}), features=[pf.Count()]
)
"""
JOB = "a" * 32


def test_an_older_copy_of_a_killed_tile_jobs_checkpoints_is_refused_after_maintenance(
    tmp_path: Path,
) -> None:
    #  tiles        1      2      3      killed | maintenance: snapshots 1 to 3 expire
    #  checkpoints  1 (a copy of the folder at that time)
    (tmp_path / "features.py").write_text(FEATURES)
    (tmp_path / "paimon-features.toml").write_text('[project]\nname = "shop"\n')
    project = Project.open(tmp_path)
    project.apply()
    target = TileTarget.of(project, "spend")
    user, table = target.new_commit_user(), target.tables[0]
    target.update(
        commit_user=user,
        job={"job_id": JOB, "branch": [[JOB, None]], "state": "FAILED"},
        events_history=None,
    )
    checkpoint = target.checkpoint_folder / JOB / "chk-1"
    assert isinstance(checkpoint, Path)
    checkpoint.mkdir(parents=True)
    (checkpoint / METADATA).write_bytes(struct.pack(">iiq", 0x4960672D, 5, 1))
    schema = project.lake.schema(table)
    columns = {
        field.name: pa.array([0], pa.int64()).cast(field.type)
        if pa.types.is_integer(field.type)
        else pa.nulls(1, field.type)
        for field in schema
    }
    for number in (1, 2, 3):
        append_arrow(
            project.lake,
            table,
            pa.table(columns, schema=schema),
            commit_user=f"{user}_uuid",
            commit_identifier=number,
        )
    assert target.ledger().committed == 3
    record_commits(project, table)
    append_arrow(project.lake, table, pa.table(columns, schema=schema))  # such as a compaction
    for number in snapshot_ids(project.lake, table)[:-1]:
        Path(project.lake.path(table), "snapshot", f"snapshot-{number}").unlink()
    assert target.ledger().committed == 3
    newest = target.ledger().newest
    assert newest is not None
    assert newest.id < target.ledger().committed
