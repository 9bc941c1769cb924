"""Iterations on Flink: seconds per epoch, beside NumPy, and until a job's first epoch.

    python -m benchmarks.iteration --modes thread process --parallelism 2

A session cluster of this machine runs every job. ``empty`` feeds one record per subtask back in
each epoch. ``descent`` is full-batch gradient descent over ``--rows`` x 10: the model is broadcast,
each subtask adds up the gradient of its rows, one operator takes the step; ``numpy`` is the same
on one core of this process, in the same run. ``start`` is from the call that submits a job, to a
cluster that has run one before, until its head tells of an epoch. Epochs are counted by what the
head says, between its first report and its last, checkpoints every 500 ms included.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from jobs.flink.cluster import ClusterShape, LocalCluster
from jobs.flink.iteration import Files, IterationJob, IterationSettings, open_stream_environment
from jobs.iteration import (
    DataStreamList,
    IterationBodyResult,
    IterationConfig,
    IterationListener,
    ReplayableDataStreamList,
    iterate_bounded_streams_until_termination,
    terminate_on_max_iter,
)
from paimon_features.setup.redis_server import RedisServer

COLUMNS = 10
BLOCK = 5_000


class Empty(IterationListener):
    """Feeds one record back from each epoch's end."""

    def process_element(self, value: Any, ctx: Any, out: Any) -> None:
        pass

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        out.collect(epoch)


class Gradient(IterationListener):
    """Half a gradient: that of the rows of this subtask, for the model of the epoch."""

    def open(self, ctx: Any) -> None:
        self.blocks = ctx.state.list("blocks")
        self.models = ctx.state.map("models")
        self.rows: tuple[np.ndarray, np.ndarray] | None = None

    def process_element1(self, model: np.ndarray, ctx: Any, out: Any) -> None:
        self.models.put(ctx.epoch, model)

    def process_element2(self, block: Any, ctx: Any, out: Any) -> None:
        self.blocks.add(block)

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        if self.rows is None:
            blocks = list(self.blocks.get())
            self.rows = tuple(np.concatenate(parts) for parts in zip(*blocks, strict=True))
        x, y = self.rows
        model = self.models.get(epoch)
        self.models.remove(epoch)
        out.collect((model, x.T @ (x @ model - y), len(y)))


class Step(IterationListener):
    """Adds the parts of an epoch's gradient up and takes the step."""

    def open(self, ctx: Any) -> None:
        self.parts = ctx.state.map("parts")

    def process_element(self, part: Any, ctx: Any, out: Any) -> None:
        self.parts.put(ctx.epoch, [*(self.parts.get(ctx.epoch) or []), part])

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        parts = self.parts.get(epoch)
        self.parts.remove(epoch)
        rows = sum(part[2] for part in parts)
        out.collect(parts[0][0] - 0.1 * sum(part[1] for part in parts) / rows)


def empty(rounds: int, parallelism: int) -> Callable[[Any], Any]:
    def build(job: Any) -> Any:
        def body(variables: DataStreamList, _: DataStreamList) -> IterationBodyResult:
            went = variables.get(0).process(Empty())
            criteria = went.flat_map(terminate_on_max_iter(rounds))
            return IterationBodyResult(
                DataStreamList.of(went), DataStreamList.of(went.filter(_never)), criteria
            )

        start = job.from_collection(range(parallelism), parallelism)
        return iterate_bounded_streams_until_termination(
            DataStreamList.of(start), ReplayableDataStreamList.not_replay(), IterationConfig(), body
        ).get(0)

    return build


def descent(rounds: int, parallelism: int, x: np.ndarray, y: np.ndarray) -> Callable[[Any], Any]:
    blocks = [(x[at : at + BLOCK], y[at : at + BLOCK]) for at in range(0, len(y), BLOCK)]

    def build(job: Any) -> Any:
        def body(variables: DataStreamList, inputs: DataStreamList) -> IterationBodyResult:
            parts = variables.get(0).broadcast().connect(inputs.get(0)).process(Gradient())
            step = parts.set_parallelism(parallelism).process(Step()).set_parallelism(1)
            criteria = step.flat_map(terminate_on_max_iter(rounds))
            return IterationBodyResult(
                DataStreamList.of(step), DataStreamList.of(step.filter(_never)), criteria
            )

        start = job.from_collection([np.zeros(COLUMNS)])
        data = job.from_collection(blocks, parallelism)
        return iterate_bounded_streams_until_termination(
            DataStreamList.of(start),
            ReplayableDataStreamList.not_replay(data),
            IterationConfig(),
            body,
        ).get(0)

    return build


def _never(_: Any) -> bool:
    return False


def numpy_epoch_s(x: np.ndarray, y: np.ndarray, rounds: int) -> float:
    """Seconds per epoch of the plain loop."""
    model = np.zeros(COLUMNS)
    began = time.perf_counter()
    for _ in range(rounds):
        model -= 0.1 * x.T @ (x @ model - y) / len(y)
    return (time.perf_counter() - began) / rounds


def run(job: IterationJob, build: Any, folder: Path) -> tuple[float, float]:
    """Seconds from the submission to the first epoch, and seconds per epoch."""
    seen: list[tuple[float, int]] = []

    def note(status: Any) -> None:
        if status[0].get("epoch") is not None and status[0]["state"] == "running":
            seen.append((float(status[0]["at"]), int(status[0]["epoch"])))

    began = time.time()
    job.execute_async(build, {"result": Files(folder)}).wait(note)
    (first_s, first), (last_s, last) = seen[0], seen[-1]
    return first_s - began, (last_s - first_s) / max(1, last - first)


@contextmanager
def cluster(state_dir: Path, slots: int) -> Iterator[str]:
    """A session cluster that ends with the block."""
    local = LocalCluster(state_dir)
    try:
        yield local.start(ClusterShape(slots=slots, task_manager_mb=2500)).address
    finally:
        local.stop()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--modes", nargs="+", default=["thread", "process"])
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, help="default: 2000 in threads, 200 in processes")
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(arguments.rows, COLUMNS))
    y = x @ rng.normal(size=COLUMNS)
    with tempfile.TemporaryDirectory() as folder, RedisServer() as redis:
        state_dir = Path(folder) / "state"
        with cluster(state_dir, 4 * arguments.parallelism) as address:
            for mode in arguments.modes:
                rounds = arguments.rounds or (2_000 if mode == "thread" else 200)
                job = IterationJob(
                    open_stream_environment(address, state_dir=state_dir),
                    settings=IterationSettings(
                        mode=mode, wire=redis.url, checkpoint_interval_ms=500
                    ),
                    cluster=address,
                    state_dir=state_dir,
                )
                p = arguments.parallelism
                run(job, empty(rounds // 10, p), Path(folder) / f"{mode}-warm")
                start_s, epoch_s = run(job, empty(rounds, p), Path(folder) / f"{mode}-empty")
                print(f"{mode:8} start {start_s:6.2f} s   empty {1000 * epoch_s:7.2f} ms/epoch")
                before = numpy_epoch_s(x, y, 200)
                _, epoch_s = run(job, descent(rounds, p, x, y), Path(folder) / f"{mode}-descent")
                plain = min(before, numpy_epoch_s(x, y, 200))
                print(
                    f"{mode:8} descent {1000 * epoch_s:7.2f} ms/epoch   "
                    f"numpy {1000 * plain:7.2f} ms/epoch   "
                    f"above twice numpy's: {1000 * (epoch_s - 2 * plain):7.2f} ms"
                )


if __name__ == "__main__":
    main()
