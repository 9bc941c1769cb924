"""The feedback loop: feedback of a running training changes its samples through the tile job."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.errors import JobError, UnknownNameError
from paimon_features.core.times.clock import now_ms
from paimon_features.core.types.schema import Float64, Int64
from paimon_features.lake import TableSpec, append_arrow, read_arrow
from paimon_features.project import Project
from paimon_features.testing.reference.features import answer
from paimon_features.testing.reference.tiler import event_rows
from paimon_features.tiles.flink.submission import submit
from paimon_features.tiles.jobs.jobs import cancel
from paimon_features.tiles.jobs.target import TileTarget
from tests.shop_projects import make_project
from trainer_bridge import (
    Difficulty,
    FeedbackWriter,
    ScoreSchedule,
    SnapshotReader,
    read_difficulty,
    scheduled_batches,
)
from trainer_bridge.samplers import DifficultyWeightedSampler

pytestmark = pytest.mark.flink

ROWS = 40
LATE_MS = 3_600_000
DEFINITIONS = """
import paimon_features as pf
from trainer_bridge.feedback.difficulty import difficulty_view

loop = pf.FeedbackSource("churn", sample_keys={"sample_id": pf.Int64})
difficulty = difficulty_view(loop, half_life="1h")
"""


@pytest.fixture
def churn(tmp_path: Path) -> Project:
    """A project with a training table and a difficulty of its rows, without feedback yet."""
    project = make_project(
        tmp_path,
        DEFINITIONS,
        '[project]\nname = "churn"\n[flink]\ncheckpoint_interval = "1s"\nparallelism = 1\n',
    )
    project.lake.create(TableSpec("training", {"sample_id": Int64, "x": Float64}))
    rows = {"sample_id": np.arange(ROWS) + 1_000, "x": np.arange(ROWS) / 7}
    append_arrow(project.lake, "training", pa.table(rows))
    return project


@contextmanager
def tile_job(target: TileTarget) -> Iterator[None]:
    """The streaming job, in this process's JVM."""
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(submit, target)
        try:
            yield
        finally:
            while not job.done():
                with suppress(JobError, UnknownNameError):  # it may be starting
                    cancel(target)
                    break
                time.sleep(0.2)
            assert job.result().state == "STOPPED"


def test_feedback_changes_the_samples_of_a_running_training(churn: Project) -> None:
    #  step       0 1 2 ... 5 ... 10 ...         every fifth step checks for new scores
    #  feedback   w w w     w                    event times of an hour ago: only tiles have them
    #  tile job   ---c-----c-----c---            a checkpoint a second
    #  scores               | has step 0 ..      the circle of those steps is closed
    written: dict[int, float] = {}
    closed: dict[int, float] = {}
    drawn: list[Difficulty] = []

    def sampler(difficulty: Difficulty) -> DifficultyWeightedSampler:
        steps = difficulty.features.column("last_step").to_pylist()
        newest = max((step for step in steps if step is not None), default=-1)
        for step in written:
            if step <= newest:
                closed.setdefault(step, time.monotonic())
        drawn.append(difficulty)
        return DifficultyWeightedSampler(
            difficulty.scores(half_life="1h"), score_snapshot_id=difficulty.snapshot_id
        )

    hard, view = 1_007, churn.definitions.view("churn_difficulty")
    with (
        tile_job(TileTarget.of(churn, view.name)),
        SnapshotReader(churn.lake, "training", batch_size=16, threads=0) as reader,
    ):
        samples = reader.read_columns(["sample_id"])
        schedule = ScoreSchedule(churn, view, samples, "run", every=5, clock_ms=now_ms)
        counts: list[int] = []
        until = time.monotonic() + 150
        with FeedbackWriter(
            churn.lake,
            churn.definitions.source("churn"),
            run_id="run",
            flush_interval_s=0.1,
            clock_ms=lambda: now_ms() - LATE_MS,
        ) as feedback:
            for step, batch in scheduled_batches(reader, schedule, sampler, stop=10**6):
                ids = batch["sample_id"]
                losses = np.where(ids == hard, 50.0, 0.25 + step % 4 / 8)
                counts.append(int((ids == hard).sum()))
                feedback.write({"sample_id": ids}, losses, step, losses < 0.4)
                written[step] = time.monotonic()
                # until feedback about samples drawn with new scores has arrived
                if len({one.snapshot_id for one in drawn if one.snapshot_id}) >= 4:
                    break
                assert time.monotonic() < until, "the circle was not closed"
                time.sleep(0.05)
        fed_back = read_arrow(churn.lake, "feedback_churn")
        while True:  # until the tiles contain all feedback
            last = read_difficulty(churn, view, samples, now_ms())
            if sum(last.features["presentations"].to_pylist()) == len(fed_back):
                break
            assert time.monotonic() < until
            time.sleep(0.1)
    latency_s = [closed[step] - written[step] for step in closed]
    print(f"{len(closed)} steps came back, after {min(latency_s):.1f} to {max(latency_s):.1f} s")
    # the difficult sample is drawn more often than one time in forty
    first = next(n for n, one in enumerate(drawn) if one.snapshot_id) * 5 + 5
    assert np.mean(counts[first:]) > 3 * 16 / ROWS
    # the final scores equal the oracle's over the feedback
    rows = event_rows(fed_back)
    found = {row["sample_id"]: row for row in last.features.to_pylist()}
    for sample in samples["sample_id"].to_pylist():
        own = [row for row in rows if row["sample_id"] == sample]
        for name, value in answer(view, own, last.as_of_ms).values.items():
            expected = None if value is None else pytest.approx(value, rel=1e-9)
            assert found[sample][name] == expected, (sample, name)
