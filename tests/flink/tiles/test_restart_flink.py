"""Never twice, on Flink: jobs that resume, are rolled back, or must not start.

Whatever happens, the tiles at the end are those of every event counted once.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from paimon_features.core.errors import GenerationError, HandoverError, JobError, OwnershipError
from paimon_features.flink import gateway
from paimon_features.lake import append_arrow, latest_snapshot, read_arrow, snapshots
from paimon_features.lake.metadata.consumers import consumers, delete_consumer
from paimon_features.lake.metadata.snapshots import BATCH_IDENTIFIER
from paimon_features.lake.ownership.lease import ProcessHolder, acquire, holder_of
from paimon_features.tiles.flink import submission
from paimon_features.tiles.flink.submission import submit
from paimon_features.tiles.jobs.target import TileTarget
from tests.flink.feed import Feed

pytestmark = [pytest.mark.flink, pytest.mark.long]


def test_only_jobs_with_checkpoints_on_s3_need_its_file_system(
    target: TileTarget, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed.commit()
    submit(target, bounded=True)
    # as if this process had opened another project, on S3, after its JVM was started
    monkeypatch.setattr(gateway, "_with_checkpoints", False)
    with pytest.raises(JobError, match="file system for s3://bucket/jobs"):
        gateway.check_checkpoint_store({"execution.checkpointing.dir": "s3://bucket/jobs"})
    feed.commit()
    submit(target, bounded=True)
    feed.assert_exact()


def test_a_checkpoint_before_the_tiles_requires_a_rollback_and_allows_any_parallelism(
    target: TileTarget, feed: Feed
) -> None:
    #  checkpoints   first      second (lost)
    #  tiles         1..n       n+1..m           -> back to n, and on from there
    feed.commit()
    first = submit(target, bounded=True)
    feed.commit()
    second = submit(target, bounded=True)
    assert first.checkpoint is not None
    assert second.checkpoint is not None
    shutil.rmtree(second.checkpoint)
    feed.commit()

    with pytest.raises(GenerationError, match="submit spend --rollback"):
        submit(target, bounded=True)
    reported: list[str] = []
    before = target.record().incarnation
    alone = replace(target, flink=replace(target.flink, parallelism=1))
    third = submit(alone, bounded=True, rollback=True, on_message=reported.append)

    feed.assert_exact()
    assert third.resumed == first.checkpoint
    assert any(line.startswith("tiles_spend_g1: rolled back to snapshot") for line in reported)
    assert target.record().incarnation == before + 1


def test_tiles_without_checkpoint_or_record_are_rejected_and_a_rebuild_is_exact(
    target: TileTarget, feed: Feed
) -> None:
    feed.commit()
    submit(target, bounded=True)
    record = target.record()
    shutil.rmtree(target.checkpoint_folder)
    with pytest.raises(GenerationError, match="submit spend --rebuild"):
        submit(target)
    target.update(commit_user=None, job=None, resume_path=None, last_committed_identifier=None)
    with pytest.raises(GenerationError, match="no record of its job"):
        submit(target)
    with pytest.raises(GenerationError, match="no checkpoint to roll back to"):
        submit(target, rollback=True)

    feed.commit()
    submit(target, bounded=True, rebuild=True)

    feed.assert_exact()
    assert target.record().incarnation == record.incarnation + 1

    oldest, *_, newest = (s.id for s in snapshots(target.lake, target.tables[0]))
    assert oldest < newest
    target.lake.table(target.tables[0]).rollback_to(oldest)
    with pytest.raises(GenerationError, match="rolled back or restored .* --rebuild"):
        submit(target)


def test_tables_owned_by_another_process_are_not_modified(target: TileTarget, feed: Feed) -> None:
    feed.commit()
    with (
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other,
        acquire(target.lake, target.tables[1], ProcessHolder.of(other.pid), "test it"),
    ):
        with pytest.raises(OwnershipError, match=f"process {other.pid}"):
            submit(target, bounded=True)
        other.kill()
    assert holder_of(target.lake, target.tables[0]) is None
    assert latest_snapshot(target.lake, target.tables[0]) is None


# -- handover ----------------------------------------------------------------------------------


@pytest.fixture
def backfilled(target: TileTarget, feed: Feed) -> Feed:
    """A generation recorded as backfilled up to events snapshot 1."""
    for _ in range(3):
        feed.commit(20)
    tiles = read_arrow(target.lake, target.tables[0])
    row = {name: [0 if pa.types.is_integer(kind) else None] for name, kind in
           zip(tiles.schema.names, tiles.schema.types, strict=True)}  # fmt: skip
    user = target.new_commit_user()
    append_arrow(
        target.lake,
        target.tables[0],
        pa.table(row, schema=tiles.schema),
        commit_user=f"{user}_0",
        commit_identifier=BATCH_IDENTIFIER,
    )
    target.update(commit_user=user, handover_snapshot=1, backfilled=True, backfill_snapshot=1)
    return feed


def expire(target: TileTarget, up_to: int) -> None:
    """Expire snapshots of the events table."""
    folder = Path(target.lake.path(target.events)) / "snapshot"
    for number in range(1, up_to + 1):
        (folder / f"snapshot-{number}").unlink()
    (folder / "EARLIEST").write_text(str(up_to + 1))


def test_a_handover_at_an_expired_snapshot_is_rejected(
    target: TileTarget, backfilled: Feed
) -> None:
    expire(target, 2)
    with pytest.raises(HandoverError, match=r"at snapshot 2 .* expired.*backfill spend --rebuild"):
        submit(target, bounded=True)
    assert consumers(target.lake, target.events) == {}


def test_a_handover_whose_snapshot_expires_during_the_start_fails_permanently(
    target: TileTarget, backfilled: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = submission._launch

    def expire_and_launch(*arguments: object) -> None:
        delete_consumer(target.lake, target.events, target.consumer)
        expire(target, 2)
        launch(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(submission, "_launch", expire_and_launch)
    with pytest.raises(HandoverError, match="expired"):
        submit(target, bounded=True)
    monkeypatch.undo()
    with pytest.raises(GenerationError, match="--rebuild"):
        submit(target, bounded=True)
