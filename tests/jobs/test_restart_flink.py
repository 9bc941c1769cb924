"""Never twice, on Flink: jobs that are stopped, killed, rolled back, or started where they may not.

Whatever happens, the tiles at the end are those of every event counted once.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from jobs import submission
from jobs.progress import cancel, job_state, list_jobs
from jobs.submission import submit
from jobs.target import TileTarget
from paimon_features.definitions import FeatureView
from paimon_features.errors import GenerationError, HandoverError, OwnershipError, UnknownNameError
from paimon_features.project import Project
from paimon_features.tables import append_arrow, latest_snapshot, read_arrow, snapshots
from paimon_features.tables.consumers import consumers, delete_consumer
from paimon_features.tables.lease import ProcessHolder, acquire, holder_of
from paimon_features.tables.snapshots import BATCH_IDENTIFIER
from paimon_features.testing.tile_jobs import (
    append_events,
    counted_skips,
    expected_skips,
    wrong_tiles,
)
from paimon_features.testing.tiler import event_rows

pytestmark = pytest.mark.flink

Purchases = Callable[[int, int], pa.Table]


class Feed:
    """Commits events and remembers them; says whether the tiles are those of all of them."""

    def __init__(self, target: TileTarget, view: FeatureView, make: Purchases) -> None:
        self.target, self.view, self.make = target, view, make
        self.events: list[pa.Table] = []

    def commit(self, count: int = 50) -> None:
        self.events.append(self.make(len(self.events), count))
        append_events(self.target.lake, self.view, self.events[-1])

    def assert_exact(self) -> None:
        rows = event_rows(pa.concat_tables(self.events))
        tiles, skipped = self.target.tables
        assert wrong_tiles(self.target.lake, self.view, tiles, rows) == []
        assert counted_skips(self.target.lake, skipped) == expected_skips(self.view, rows)


@pytest.fixture
def feed(target: TileTarget, spend: FeatureView, purchases: Purchases) -> Feed:
    return Feed(target, spend, purchases)


def test_a_checkpoint_older_than_the_tiles_needs_a_rollback_and_then_all_is_exact(
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
    told: list[str] = []
    before = target.record().incarnation
    third = submit(target, bounded=True, rollback=True, tell=told.append)

    feed.assert_exact()
    assert third.resumed == first.checkpoint
    assert any(line.startswith("tiles_spend_g1: back to snapshot") for line in told)
    assert target.record().incarnation == before + 1


def test_tiles_without_checkpoint_or_record_are_refused_and_a_rebuild_is_exact(
    target: TileTarget, feed: Feed
) -> None:
    feed.commit()
    submit(target, bounded=True)
    record = target.record()
    shutil.rmtree(target.checkpoint_folder)
    with pytest.raises(GenerationError, match="submit spend --rebuild"):
        submit(target)
    target.update(commit_user=None, job=None, resume_path=None, last_committed_identifier=None)
    with pytest.raises(GenerationError, match="no record of who filled it"):
        submit(target)
    with pytest.raises(GenerationError, match="no checkpoint to go back to"):
        submit(target, rollback=True)

    feed.commit()
    submit(target, bounded=True, rebuild=True)

    feed.assert_exact()
    assert target.record().incarnation == record.incarnation + 1


def test_a_checkpoint_fits_another_parallelism(target: TileTarget, feed: Feed) -> None:
    feed.commit()
    submit(target, bounded=True)
    feed.commit()
    alone = replace(target, flink=replace(target.flink, parallelism=1))
    assert submit(alone, bounded=True).resumed is not None
    feed.assert_exact()


def test_tables_that_another_process_owns_are_left_alone(target: TileTarget, feed: Feed) -> None:
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
    """A generation that looks backfilled up to events snapshot 1."""
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
    target.update(commit_user=user, handover_snapshot=1, backfilled=True)
    return feed


def expire(target: TileTarget, up_to: int) -> None:
    """What expiry leaves of the events table."""
    folder = Path(target.lake.path(target.events)) / "snapshot"
    for number in range(1, up_to + 1):
        (folder / f"snapshot-{number}").unlink()
    (folder / "EARLIEST").write_text(str(up_to + 1))


def test_a_handover_whose_snapshot_has_expired_is_refused(
    target: TileTarget, backfilled: Feed
) -> None:
    expire(target, 2)
    with pytest.raises(HandoverError, match=r"at snapshot 2 .* expired.*backfill spend --rebuild"):
        submit(target, bounded=True)
    assert consumers(target.lake, target.events) == {}


def test_a_handover_whose_snapshot_expires_during_the_start_is_refused_for_good(
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


# -- killed ------------------------------------------------------------------------------------


class Client:
    """``paimon-features submit spend`` in a process of its own."""

    def __init__(self, project: Project, *arguments: str) -> None:
        code = "from paimon_features.cli import main; main()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "submit", "spend", "--project", project.root, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    @property
    def jvm(self) -> int:
        """The number of its JVM, its only child."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        (child,) = path.read_text().split()
        return int(child)

    def await_commit(self, target: TileTarget) -> None:
        """Wait until it has committed since it was started."""
        before = _commits(target)
        _until(lambda: _commits(target) > before or self.process.poll() is not None, 120)
        assert self.process.poll() is None, self.output()

    def output(self) -> str:
        return self.process.communicate(timeout=60)[0]


@pytest.fixture
def client(project: Project) -> Iterator[Callable[..., Client]]:
    """Starts clients; what is still there at the end is killed, by its number."""
    started: list[Client] = []

    def start(*arguments: str) -> Client:
        started.append(Client(project, *arguments))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()


def kill(client: Client, what: str) -> None:
    """End the client, its JVM, or both, without a word."""
    jvm = client.jvm
    if what != "jvm":
        client.process.kill()
    if what != "client":
        os.kill(jvm, signal.SIGKILL)
    client.process.wait(60)
    _until(lambda: not Path(f"/proc/{jvm}").exists() or _is_zombie(jvm), 30)


def test_a_running_job_is_seen_is_alone_and_stops_on_request(
    project: Project, target: TileTarget, feed: Feed, client: Callable[..., Client]
) -> None:
    feed.commit()
    first = client()
    first.await_commit(target)
    (row,) = list_jobs(project)
    assert (row.state, row.where, row.kind) == ("RUNNING", "local", "stream")
    with pytest.raises(OwnershipError, match="Flink job"):
        submit(target)
    first.process.send_signal(signal.SIGINT)
    assert "goes on from there" in first.output()
    assert first.process.returncode == 0
    assert job_state(target.lake, target.record()) == "STOPPED"
    with pytest.raises(UnknownNameError, match="its last one is STOPPED"):
        cancel(target)

    feed.commit()
    second = client("--resume")
    second.await_commit(target)
    savepoint = cancel(target)
    assert savepoint is not None
    assert "goes on from" in second.output()
    assert second.process.returncode == 0
    assert target.record().resume_path == savepoint

    feed.commit()
    submit(target, bounded=True)
    feed.assert_exact()


@pytest.mark.parametrize("what", ["client", "both", "jvm"])
def test_a_job_that_is_killed_goes_on_and_all_is_exact(
    target: TileTarget, feed: Feed, client: Callable[..., Client], what: str
) -> None:
    rng = random.Random()
    feed.commit()
    running = client()
    running.await_commit(target)
    deadline = time.monotonic() + rng.uniform(0.0, 1.5)
    while time.monotonic() < deadline:
        feed.commit(10)
        time.sleep(rng.uniform(0.0, 0.1))
    kill(running, what)
    assert job_state(target.lake, target.record()) in ("LOST", "FAILED")
    feed.commit()
    outcome = submit(target, bounded=True)
    assert outcome.resumed is not None
    feed.assert_exact()


def _commits(target: TileTarget) -> int:
    return sum(1 for s in snapshots(target.lake, target.tables[0]) if s.kind == "APPEND")


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def _until(done: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < deadline, "it did not come to that in time"
        time.sleep(0.05)
