"""Seconds per epoch of supersteps, compared with the streaming runtime with the same program.

    python -m benchmarks.supersteps --modes thread process --parallelism 2

The program is gradient descent over ``--rows`` x 10 in a Paimon table that is replayed in every
epoch, its functions live for a round: each subtask adds up the squares and products of its rows,
one operator takes the step. The streaming runtime (``stream``) keeps the rows and replays them;
supersteps (``table``) read them again, and commit the model after every epoch. A session cluster of
this machine runs both, in turns; ``here`` is supersteps in this process, without Flink. Epochs of
``stream`` are counted by what its head says, those of the others by their commits.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import paimon_features as pf
from benchmarks.iteration import cluster, run
from paimon_features.iteration import (
    DataStreamList,
    IterationBodyResult,
    IterationConfig,
    IterationListener,
    OperatorLifeCycle,
    ReplayableDataStreamList,
    iterate_bounded_streams_until_termination,
)
from paimon_features.iteration.flink import IterationJob, IterationSettings
from paimon_features.iteration.flink.superstep_runner import FlinkSuperstepRunner
from paimon_features.iteration.supersteps.executor import SuperstepExecutor, SuperstepRunner
from paimon_features.lake import Lake, TableSpec, append_arrow
from paimon_features.testing.servers.redis_server import RedisServer

WIDTH = 10
COLUMNS = [*(f"x{number}" for number in range(WIDTH)), "y"]


class Sums(IterationListener):
    """Squares and products of the rows of this subtask, for the model of the epoch."""

    def open(self, ctx: Any) -> None:
        self.model = ctx.state.value("model")
        self.sums = ctx.state.value("sums")

    def process_element1(self, model: np.ndarray, ctx: Any, out: Any) -> None:
        self.model.update(model)

    def process_element2(self, block: pa.RecordBatch, ctx: Any, out: Any) -> None:
        rows = np.stack([column.to_numpy() for column in block.columns], axis=1)
        count, products = self.sums.value((0, 0.0))
        self.sums.update((count + len(rows), products + rows[:, :WIDTH].T @ rows))

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        out.collect((self.model.value(), *self.sums.value((0, np.zeros((WIDTH, WIDTH + 1))))))


class Step(IterationListener):
    """Adds the subtasks' sums up and takes the step."""

    def open(self, ctx: Any) -> None:
        self.parts = ctx.state.list("parts")

    def process_element(self, part: Any, ctx: Any, out: Any) -> None:
        self.parts.add(part)

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        models, counts, products = zip(*self.parts.get(), strict=True)
        total = sum(products)
        out.collect(
            models[0] - 0.1 * (total[:, :WIDTH] @ models[0] - total[:, WIDTH]) / sum(counts)
        )


def program(lake: Lake, rounds: int, parallelism: int) -> Callable[[Any], Any]:
    """Gives the model after the last round."""

    def body(variables: DataStreamList, inputs: DataStreamList) -> IterationBodyResult:
        sums = variables.get(0).broadcast().connect(inputs.get(0)).process(Sums())
        step = sums.set_parallelism(parallelism).process(Step()).set_parallelism(1)
        return IterationBodyResult(DataStreamList.of(step), DataStreamList.of(step))

    def build(job: Any) -> Any:
        config = IterationConfig(lifecycle=OperatorLifeCycle.PER_ROUND, max_rounds=rounds)
        return iterate_bounded_streams_until_termination(
            DataStreamList.of(job.from_collection([np.zeros(WIDTH)])),
            ReplayableDataStreamList.replay(
                job.from_table(lake, "rows", COLUMNS, parallelism=parallelism)
            ),
            config,
            body,
        ).get(0)

    return build


def supersteps_s(lake: Lake, name: str, build: Any, runner: SuperstepRunner | None) -> float:
    """Seconds between two commits, the median."""
    commits: list[float] = []
    executor = SuperstepExecutor(
        lake, name, runner=runner, on_epoch=lambda _: commits.append(time.perf_counter())
    )
    executor.run(build)
    return statistics.median(np.diff(commits))


def make_rows(lake: Lake, rows: int) -> None:
    """The table, in eight commits: as many splits to be dealt."""
    rng = np.random.default_rng(0)
    lake.create(TableSpec("rows", dict.fromkeys(COLUMNS, pf.Float64)))
    x = rng.normal(size=(rows, WIDTH))
    data = np.column_stack([x, x @ rng.normal(size=WIDTH)])
    table = pa.table({name: data[:, at] for at, name in enumerate(COLUMNS)})
    part = -(-rows // 8)
    for start in range(0, rows, part):
        append_arrow(lake, "rows", table.slice(start, part))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--modes", nargs="+", default=["thread", "process"])
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, RedisServer() as redis:
        root = Path(folder)
        lake = Lake.open(root / "lake", "shop")
        make_rows(lake, arguments.rows)
        with cluster(root / "state", 4 * arguments.parallelism) as address:
            for mode in arguments.modes:
                threads = mode == "thread"
                settings = IterationSettings(mode=mode, wire=redis.url, checkpoint_interval_ms=500)
                job = IterationJob(settings=settings, cluster=address, state_dir=root / "state")
                runner = FlinkSuperstepRunner(address, mode=mode, state_dir=root / "state")
                few, many = (10, 100) if threads else (2, 20)
                p = arguments.parallelism
                run(job, program(lake, few, p), root / f"{mode}-warm")
                for repeat in range(arguments.repeats):
                    name = f"{mode}_{repeat}"
                    _, stream_s = run(job, program(lake, many, p), root / name)
                    table_s = supersteps_s(lake, name, program(lake, few, p), runner)
                    here_s = supersteps_s(lake, f"{name}_here", program(lake, few, p), None)
                    print(
                        f"{mode:8} stream {stream_s:7.3f} s/epoch   table {table_s:7.3f} s/epoch "
                        f"({table_s / stream_s:.0f} times)   here {here_s:7.3f} s/epoch",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
