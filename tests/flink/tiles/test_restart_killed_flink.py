"""Tile jobs in processes of their own: stopped on request, or killed without a word.

``PAIMON_FEATURES_KILLS`` is how often (``make chaos`` says a hundred times), a failing run prints
its seed for ``PAIMON_FEATURES_SEED``.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paimon_features.core.errors import OwnershipError, UnknownNameError
from paimon_features.core.process.waiting import wait_until
from paimon_features.lake import snapshots
from paimon_features.project import Project
from paimon_features.project.status.job_status import read_jobs
from paimon_features.tiles.flink.submission import submit
from paimon_features.tiles.jobs.jobs import cancel, job_state, list_jobs
from paimon_features.tiles.jobs.target import TileTarget
from tests.flink.conftest import FEATURES
from tests.flink.feed import Feed
from tests.os_processes import is_running
from tests.waiting import LONG_S

KILLS = int(os.environ.get("PAIMON_FEATURES_KILLS", "1"))
SEED = int(os.environ.get("PAIMON_FEATURES_SEED", random.randrange(10**6)))

pytestmark = pytest.mark.flink


class Client:
    """``paimon-features submit spend`` in a separate process."""

    def __init__(self, project: Project, target: TileTarget, *arguments: str) -> None:
        self.target = target
        self.recorded = self._record()
        self.commits = self.commits_now()
        code = "from paimon_features.cli import main; main()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "submit", "spend", "--project", project.root, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def await_launch(self) -> None:
        """Wait until it has recorded the job that it is about to start."""
        self._until(lambda: self._record() != self.recorded)

    def await_commit(self) -> None:
        """Wait until its job has committed."""
        self._until(lambda: self.commits_now() > self.commits)

    def kill(self, what: str) -> None:
        """Kill the client, its JVM, or both, and wait until both have ended."""
        jvm = self._jvm()
        if what != "jvm":
            self.process.kill()
        if what != "client":
            os.kill(jvm, signal.SIGKILL)
        self.process.communicate(timeout=300)
        # it ends by itself without its client
        assert wait_until(lambda: not is_running(jvm), LONG_S), "the JVM outlived its client"

    def output(self) -> str:
        return self.process.communicate(timeout=300)[0]

    def commits_now(self) -> int:
        """The number of commits of the tile table."""
        return sum(1 for _ in snapshots(self.target.lake, self.target.tables[0]))

    def _jvm(self) -> int:
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        children = [int(child) for child in path.read_text().split()]
        # the other one is the JVM's watchdog
        (jvm,) = (c for c in children if Path(f"/proc/{c}/comm").read_text() == "java\n")
        return jvm

    def _record(self) -> str | None:
        job = self.target.record().job
        return None if job is None else str(job["job_id"])

    def _until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not done():
            assert self.process.poll() is None, self.output()
            assert time.monotonic() < deadline, "it did not come to that in time"
            time.sleep(0.05)


@pytest.fixture
def features() -> str:
    """A small view, whose job is planned quickly: only the time of the kill is tested."""
    text, _ = FEATURES.split("    features=[")
    return (
        text + "    features=[pf.Count(windows=['7d']), pf.Sum('quantity', windows=['1d'])],\n)\n"
    )


@pytest.fixture
def client(project: Project, target: TileTarget) -> Iterator[Callable[..., Client]]:
    """Starts clients, and kills remaining processes by id at the end."""
    started: list[Client] = []

    def start(*arguments: str) -> Client:
        started.append(Client(project, target, *arguments))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()


@pytest.mark.long
def test_a_running_job_is_listed_exclusive_and_stops_on_request(
    project: Project, target: TileTarget, feed: Feed, client: Callable[..., Client]
) -> None:
    feed.commit()
    first = client()
    first.await_commit()
    (row,) = list_jobs(project.lake)
    assert (row.state, row.where, row.kind) == ("RUNNING", "local", "stream")
    (job,) = read_jobs(project.lake, project.config.state_dir)
    assert (job.state, job.job_id, job.restarts, job.last_error) == (
        "RUNNING", row.job_id, 0, None
    )  # fmt: skip
    assert job.checkpoint is not None
    with pytest.raises(OwnershipError, match="Flink job"):
        submit(target)
    first.process.send_signal(signal.SIGINT)
    assert "resumes from it" in first.output()
    assert first.process.returncode == 0
    assert job_state(target.lake, target.record()) == "STOPPED"
    with pytest.raises(UnknownNameError, match="its last one is STOPPED"):
        cancel(target)

    feed.commit()
    before = first.commits_now()
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(submit, target, resume=True)
        while first.commits_now() == before and not second.done():
            time.sleep(0.05)
        savepoint = cancel(target)
        outcome = second.result()
    assert savepoint is not None
    assert (outcome.state, outcome.checkpoint) == ("STOPPED", savepoint)
    assert target.record().resume_path == savepoint

    feed.commit()
    assert submit(target, bounded=True).resumed == savepoint
    feed.assert_exact()


def way_to_kill(number: int) -> tuple[str, str]:
    """When and what to kill: every kind once in six, in any order, one of two after a commit."""
    rng = random.Random(SEED + number // 6)
    victims = {m: rng.sample(("client", "jvm", "both"), 3) for m in ("launch", "commit")}
    moments = [moment for _ in range(3) for moment in rng.sample(("launch", "commit"), 2)]
    moment = moments[number % 6]
    return moment, victims[moment][number % 6 // 2]


@pytest.mark.timeout(600 + 60 * KILLS)
@pytest.mark.long
def test_a_repeatedly_killed_job_resumes_exactly(
    target: TileTarget, feed: Feed, client: Callable[..., Client]
) -> None:
    #  client  start ---- launch ---- commit ---- commit --
    #  killed                  ^ or             ^  at some moment, it, its JVM, or both
    print(f"PAIMON_FEATURES_SEED={SEED}")
    rng = random.Random(SEED)
    for number in range(KILLS):
        moment, what = way_to_kill(number)
        running = client()
        feed.commit(rng.randrange(1, 50))
        if moment == "launch":
            running.await_launch()
            life_s = rng.uniform(0.0, 4.0)
        else:
            running.await_commit()
            life_s = rng.uniform(0.0, 1.0)
        deadline = time.monotonic() + life_s
        while time.monotonic() < deadline:
            feed.commit(rng.randrange(1, 20))
            time.sleep(rng.uniform(0.0, 0.1))
        print(f"kill {number}: {what} {life_s:.2f} s behind its {moment}")
        running.kill(what)
        assert job_state(target.lake, target.record()) in ("LOST", "FAILED")
    feed.commit()
    outcome = submit(target, bounded=True)
    # a job that was killed after a commit left a checkpoint
    assert (outcome.resumed is not None) or KILLS < 2
    feed.assert_exact()
