"""Scores enter at declared steps, from snapshots that the run can name again."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.errors import ConfigurationError, RecordLostError, SnapshotExpiredError
from paimon_features.core.types.schema import Float64, Int64
from paimon_features.definitions import FeatureRef, FeedbackSource
from paimon_features.lake import TableSpec, append_arrow, read_arrow
from paimon_features.offline.store import OfflineStore
from paimon_features.testing.reference.tiler import event_rows
from tests.tile_lake import TileLake
from trainer_bridge.feedback.difficulty import difficulty_view, read_difficulty
from trainer_bridge.feedback.writer import FeedbackWriter
from trainer_bridge.readers.score_schedule import ScoreSchedule, scheduled_batches
from trainer_bridge.readers.snapshot_reader import SnapshotReader
from trainer_bridge.samplers import DifficultyWeightedSampler

DAY = 86_400_000
ROWS = 60
SOURCE = FeedbackSource("churn", sample_keys={"sample_id": Int64})
VIEW = difficulty_view(SOURCE, half_life="1d")


class Project:
    """A table to train on, and the part of a project that difficulty is read through."""

    def __init__(self, folder: Path) -> None:
        self.tiles = TileLake(folder, VIEW)
        self.lake = self.tiles.lake
        self.offline = OfflineStore(
            self.lake, lambda _: self.tiles.compiled, lambda _: self.tiles.record
        )
        self.now_ms, self.runs = 0, 0
        self.lake.create(TableSpec("training", {"sample_id": Int64, "x": Float64}))
        rows = {"sample_id": np.arange(ROWS) * 3, "x": np.arange(ROWS) / 7}
        append_arrow(self.lake, "training", pa.table(rows))

    def refs(self, features: list[str]) -> list[FeatureRef]:
        return [FeatureRef.parse(text) for text in features]

    def feed(self, losses: np.ndarray) -> None:
        """Feedback of all samples, and the tile job that has it."""
        self.runs += 1
        self.now_ms += DAY
        with FeedbackWriter(
            self.lake, SOURCE, run_id=f"run{self.runs}", clock_ms=lambda: self.now_ms - 7
        ) as writer:
            writer.write({"sample_id": np.arange(ROWS) * 3}, losses, 0)
        rows = event_rows(read_arrow(self.lake, SOURCE.table))
        self.tiles.commit([row for row in rows if row["event_time_ms"] == self.now_ms - 7])

    def schedule(self, run_id: str = "run", **options: Any) -> ScoreSchedule:
        samples = read_arrow(self.lake, "training", ["sample_id"])
        given = {"clock_ms": lambda: self.now_ms, **options}
        return ScoreSchedule(self, VIEW, samples, run_id, **given)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def sampler(difficulty: Any) -> DifficultyWeightedSampler:
    scores = difficulty.scores(half_life="1d")
    return DifficultyWeightedSampler(scores, score_snapshot_id=difficulty.snapshot_id, seed=3)


def train(project: Project, schedule: ScoreSchedule, start: int, stop: int, **reader: Any) -> Any:
    """(step, row numbers) of a training whose feedback comes between the steps."""
    options = {"batch_size": 8, "seed": 5, "threads": 0, **reader}
    with SnapshotReader(project.lake, "training", **options) as opened:
        for step, batch in scheduled_batches(opened, schedule, sampler, start=start, stop=stop):
            yield step, batch.row_numbers.tolist()


def test_the_steps_are_those_that_were_declared(project: Project) -> None:
    every, at = project.schedule(every=10), project.schedule(at=[0, 7])
    assert [step for step in range(35) if every.is_due(step)] == [10, 20, 30]
    assert (every.last_due(9), every.last_due(29), every.next_due(10)) == (None, 20, 20)
    assert [step for step in range(35) if at.is_due(step)] == [0, 7]
    assert (at.last_due(99), at.next_due(0), at.next_due(7)) == (7, 7, None)
    for wrong in ({}, {"every": 0}, {"every": 3, "at": [1]}, {"at": [-1]}):
        with pytest.raises(ConfigurationError, match="expected a name, and either"):
            project.schedule(**wrong)


def test_scores_enter_at_their_steps_and_a_repeated_run_gets_the_same_batches(
    project: Project,
) -> None:
    #  step      0 ....... 10 ......... 20 ......... 30
    #  scores    none      | of day 1   | of day 3   |
    #  feedback  ^day 1           ^day 2  ^day 3          (what comes between is not seen)
    rng = np.random.default_rng(2)
    schedule, seen = project.schedule(every=10), []
    project.feed(rng.random(ROWS))
    for step, rows in train(project, schedule, 0, 30):
        seen.append((step, rows))
        if step in (14, 18, 24):
            project.feed(rng.exponential(5.0, ROWS))
    assert [step for step, _ in seen] == list(range(30))
    chosen = schedule.choices()
    assert {step: pins["pins"][0]["snapshot_id"] for step, pins in chosen.items()} == {10: 1, 20: 3}
    # the same run again, with all of the feedback in the table by now
    assert list(train(project, project.schedule(every=10), 0, 30)) == seen
    # from any step on
    for start in (3, 10, 13, 20, 29):
        assert list(train(project, project.schedule(every=10), start, 30)) == seen[start:]
    # and on other ranks, which together have the same
    ranks = [
        list(train(project, project.schedule(every=10), 5, 25, batch_size=4, rank=r, world_size=2))
        for r in range(2)
    ]
    for (step, rows), (_, one), (_, other) in zip(seen[5:25], *ranks, strict=True):
        assert sorted(one + other) == sorted(rows), step
    # another run chooses again
    another = list(train(project, project.schedule("other", every=10), 0, 30))
    assert another[:10] == seen[:10]
    assert another[10:] != seen[10:]


def test_between_two_that_come_to_a_step_at_once_one_choice_holds(project: Project) -> None:
    project.feed(np.ones(ROWS))
    one, other = project.schedule(at=[4]), project.schedule(at=[4])
    assert one.difficulty(3) is None
    real = one._choose

    def late(step: int, found: Any) -> bool:
        project.feed(np.full(ROWS, 9.0))
        assert other.difficulty(step).snapshot_id == 2  # type: ignore[union-attr]
        return real(step, found)

    one._choose = late  # type: ignore[method-assign]
    found = one.difficulty(4)
    assert found is not None
    assert (found.snapshot_id, found.as_of_ms) == (2, 2 * DAY)
    assert list(one.choices()) == [4]


def test_what_was_pinned_is_read_again_to_the_bit(project: Project) -> None:
    rng = np.random.default_rng(1)
    for _ in range(3):
        project.feed(rng.exponential(1.0, ROWS))
    samples = read_arrow(project.lake, "training", ["sample_id"])
    first = read_difficulty(project, VIEW, samples, project.now_ms)
    as_of_ms = project.now_ms
    project.feed(rng.exponential(1.0, ROWS))
    again = read_difficulty(project, VIEW, samples, as_of_ms, as_of=first.pins)
    assert again.pins == first.pins
    assert again.scores().tobytes() == first.scores().tobytes()
    newest = read_difficulty(project, VIEW, samples, project.now_ms)
    assert newest.snapshot_id == 4
    assert newest.scores().tobytes() != first.scores().tobytes()


def test_scores_of_tiles_that_were_emptied_since_are_an_error_and_not_others(
    project: Project,
) -> None:
    schedule = project.schedule(every=10)
    project.feed(np.linspace(0, 1, ROWS))
    assert schedule.difficulty(10) is not None
    tiles = project.tiles
    tiles.lake.drop(tiles.record.table)
    tiles.record = replace(tiles.record, generation=tiles.record.generation - 1)
    tiles.new_generation(tiles.record.buckets)
    project.feed(np.linspace(1, 0, ROWS))
    with pytest.raises(SnapshotExpiredError, match=f"table '{tiles.record.table}': snapshot 1@"):
        schedule.difficulty(10)
    assert schedule.difficulty(20) is not None


def test_weighted_losses_of_what_was_hard_have_the_mean_of_all(project: Project) -> None:
    # Horvitz and Thompson: the expectation of w_i * l_i under the draws is the plain mean
    rng = np.random.default_rng(6)
    project.feed(rng.exponential(2.0, ROWS))
    losses = rng.normal(3.0, 2.0, ROWS)  # of the model as it is now: not what the scores say
    difficulty = project.schedule(at=[0]).difficulty(0)
    assert difficulty is not None
    hard = DifficultyWeightedSampler(difficulty.scores(half_life="1d"), 4_000, seed=1)
    weighted, plain = [], []
    with SnapshotReader(project.lake, "training", batch_size=16, threads=0) as reader:
        for batch in reader.with_sampler(hard):
            of_batch = losses[batch["sample_id"] // 3] + difficulty.scores()[batch.row_numbers]
            weighted.append(batch["sample_weight"] * of_batch)
            plain.append(of_batch)
    expected = float(np.mean(losses + difficulty.scores()))
    for drawn, unbiased in ((weighted, True), (plain, False)):
        values = np.concatenate(drawn)
        sigma = values.std() / np.sqrt(len(values))
        # without the weights what is hard counts too often
        assert (abs(values.mean() - expected) < 4 * sigma) == unbiased


def test_a_choice_that_was_lost_is_not_made_again(project: Project) -> None:
    project.feed(np.zeros(ROWS))
    assert project.schedule(every=10).difficulty(10) is not None
    shutil.rmtree(project.lake.side_folder / "scores")
    with pytest.raises(RecordLostError, match="a resumed run could read others"):
        project.schedule(every=10).difficulty(10)
    assert project.schedule("another run", every=10).difficulty(10) is not None
