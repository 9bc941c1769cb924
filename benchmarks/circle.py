"""The circle: from a step of a running training until its losses are in the scores it draws by.

    python -m benchmarks.circle --seconds 60 --rate 20

The tile job is a process of its own, started as a user would (``submit``, a checkpoint a second);
the training is this process: so many steps a second over a table of 20,000 rows, each handed to
``FeedbackWriter``, and every few steps it requests new scores to sample by. A step's circle is
closed when a sampler is ready whose scores hold it.

::

    step      committed as feedback      committed in a tile      the sampler draws by it
      |---- write ----|------------ tile job ------|------ scores ------|

Event times are those of an hour ago, so that the scores have them from tiles alone; of the tile
that is open, scores otherwise also hold the feedback that the tile job has not had yet.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.freshness import process
from paimon_features.core.errors import JobError
from paimon_features.core.times.clock import now_ms
from paimon_features.core.types.schema import Float64, Int64
from paimon_features.lake import TableSpec, append_arrow, snapshot
from paimon_features.project import Project
from trainer_bridge import (
    Difficulty,
    FeedbackWriter,
    ScoreSchedule,
    SnapshotReader,
    scheduled_batches,
)
from trainer_bridge.samplers import DifficultyWeightedSampler

ROWS = 20_000
BATCH = 256
LATE_MS = 3_600_000
WARM_UP_S = 10.0
DEFINITIONS = """
import paimon_features as pf
from trainer_bridge.feedback.difficulty import difficulty_view

loop = pf.FeedbackSource("churn", sample_keys={"sample_id": pf.Int64})
difficulty = difficulty_view(loop, half_life="1h")
"""


class Training:
    """The running training, and when what became of each of its steps (s since 1970)."""

    def __init__(self, project: Project, rate: float, every: int) -> None:
        self.project, self.rate, self.every = project, rate, every
        self.stepped: dict[int, float] = {}
        self.committed: dict[int, float] = {}
        self.tiled: dict[int, float] = {}
        self.scored: dict[int, float] = {}
        self.read_s: list[float] = []
        self.first = -1

    def run(self, seconds: float) -> None:
        """Train until the circle has been closed for so long."""
        project = self.project
        rng = np.random.default_rng(0)
        end = threading.Event()
        with (
            SnapshotReader(project.lake, "training", batch_size=BATCH) as reader,
            FeedbackWriter(
                project.lake,
                project.definitions.source("churn"),
                run_id="run",
                flush_interval_s=0.2,
                clock_ms=lambda: now_ms() - LATE_MS,
            ) as writer,
        ):
            samples = reader.read_columns(["sample_id"])
            schedule = ScoreSchedule(
                project, "churn_difficulty", samples, "run", every=self.every, clock_ms=now_ms
            )
            watch = threading.Thread(target=self._watch, args=(writer, end), daemon=True)
            watch.start()
            began, closed = time.time(), None
            for step, batch in scheduled_batches(reader, schedule, self._sampler, stop=10**9):
                now = time.time()
                time.sleep(max(0.0, began + step / self.rate - now))
                writer.write({"sample_id": batch["sample_id"]}, rng.exponential(1.0, BATCH), step)
                self.stepped[step] = time.time()
                if closed is None and self.scored:
                    closed = time.time() + WARM_UP_S
                    self.first = step + int(WARM_UP_S * self.rate)
                if closed is not None and time.time() > closed + seconds:
                    break
                if closed is None and time.time() > began + 180:
                    raise JobError("the circle was not closed in three minutes")
            end.set()

    def _watch(self, writer: FeedbackWriter, end: threading.Event) -> None:
        done = 0
        while not end.is_set():
            for seq in range(done + 1, writer.committed + 1):
                self.committed[seq - 1] = time.time()  # the first call is that of step 0
                done = seq
            time.sleep(0.005)

    def _sampler(self, difficulty: Difficulty) -> DifficultyWeightedSampler:
        sampler = DifficultyWeightedSampler(
            difficulty.scores(half_life="1h"), score_snapshot_id=difficulty.snapshot_id
        )
        newest = difficulty.features["last_step"].to_numpy(zero_copy_only=False)
        if difficulty.snapshot_id is not None and not np.isnan(newest).all():
            table = self.project.generation(self.project.view("churn_difficulty")).table
            tiled = snapshot(self.project.lake, table, difficulty.snapshot_id).time_ms / 1_000
            now = time.time()
            self.read_s.append(now - difficulty.as_of_ms / 1_000)
            # a commit of the tile job may hold part of its newest step
            for step in range(max(self.scored, default=-1) + 1, int(np.nanmax(newest))):
                self.tiled[step], self.scored[step] = tiled, now
        return sampler

    def hops(self) -> dict[str, np.ndarray]:
        """Seconds per step, of the steps behind the warm-up."""
        steps = [s for s in self.scored if s >= self.first and s in self.committed]
        stepped, committed, tiled, scored = (
            np.array([times[step] for step in steps])
            for times in (self.stepped, self.committed, self.tiled, self.scored)
        )
        return {
            "step to scores": scored - stepped,
            "  write": committed - stepped,
            "  tile job": tiled - committed,
            "  scores": scored - tiled,
            "read of all scores": np.array(self.read_s),
        }


def make_project(root: Path) -> Project:
    """A table to train on, and the difficulty of its rows."""
    (root / "features.py").write_text(DEFINITIONS)
    (root / "paimon-features.toml").write_text('[project]\nname = "bench"\n')
    project = Project.open(root)
    project.apply()
    project.lake.create(TableSpec("training", {"sample_id": Int64, "x": Float64}))
    rows = {"sample_id": np.arange(ROWS), "x": np.arange(ROWS) / 7}
    append_arrow(project.lake, "training", pa.table(rows))
    return project


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=20.0, help="steps per second")
    parser.add_argument("--every", type=int, default=10, help="steps between new scores")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        training = Training(make_project(root), arguments.rate, arguments.every)
        submit = [sys.executable, "-m", "paimon_features", "submit", "churn_difficulty"]
        with (
            (root / "log").open("w") as log,
            process([*submit, "--project", folder], stdout=log, stderr=subprocess.STDOUT),
        ):
            training.run(arguments.seconds)
        hops = training.hops()
    print(f"{'seconds':20} {'steps':>8} {'p50':>7} {'p90':>7} {'p99':>7} {'max':>7}")
    for name, values in hops.items():
        marks = " ".join(f"{q:7.2f}" for q in np.percentile(values, (50, 90, 99, 100)))
        print(f"{name:20} {len(values):8,} {marks}")


if __name__ == "__main__":
    main()
