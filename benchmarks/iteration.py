"""Iterations on Flink: seconds per epoch, compared with NumPy, and until a job's first epoch.

    python -m benchmarks.iteration --modes thread process --parallelism 2
    python -m benchmarks.iteration --modes process --runs 10
    python -m benchmarks.iteration --modes process --trace

A session cluster of this machine runs every job. ``empty`` feeds one record per subtask back in
each epoch. ``descent`` is full-batch gradient descent over ``--rows`` x 10: each subtask has the
model and adds up the gradient of its rows, the feedback is all-reduced, and each takes the same
step; ``numpy`` is the same on one core of this process, in the same run. ``start`` is from the call
that submits a job, to a cluster that has run one before, until its head reports an epoch. Epochs
are counted by what the head says, between its first report and its last, checkpoints every 500 ms
included.

``--runs 10`` does that ten times, in turns, without the part on checkpoints, and prints each run
and the least, the median and the most. ``--trace`` prints where an empty epoch's time goes, hop by
hop.

``checkpoints`` are jobs of their own with one every ``--interval-ms``: what is between two of them
while the iteration runs, by the times at which Flink says that it began them, and how long each
took. Those of a job's start, before its first epoch, do not count.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.iteration_trace import hops, read_events, traced
from paimon_features.core.process.flink_rest import FlinkRest
from paimon_features.flink.cluster import ClusterShape, LocalCluster
from paimon_features.iteration import (
    DataStreamList,
    IterationBodyResult,
    IterationConfig,
    IterationListener,
    ReplayableDataStreamList,
    iterate_bounded_streams_until_termination,
    terminate_on_max_iter,
)
from paimon_features.iteration.flink import (
    FileOutput,
    IterationJob,
    IterationSettings,
    open_stream_environment,
)
from paimon_features.testing.servers.redis_server import RedisServer

COLUMNS = 10
BLOCK = 5_000


class Empty(IterationListener):
    """Feeds one record back from each epoch's end."""

    def process_element(self, value: Any, ctx: Any, out: Any) -> None:
        pass

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        out.collect(epoch)


class Descend(IterationListener):
    """The gradient of the rows of this subtask; the step after the sum over all subtasks."""

    def open(self, ctx: Any) -> None:
        self.blocks = ctx.state.list("blocks")
        self.model = ctx.state.value("model")
        self.rows: tuple[np.ndarray, np.ndarray] | None = None

    def process_element1(self, total: np.ndarray, ctx: Any, out: Any) -> None:
        """Receive the gradient, then the number of rows; without rows, the initial model."""
        gradient, rows = total[:-1], total[-1]
        self.model.update(self.model.value() - 0.1 * gradient / rows if rows else gradient)

    def process_element2(self, block: Any, ctx: Any, out: Any) -> None:
        self.blocks.add(block)

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        if self.rows is None:
            blocks = list(self.blocks.get())
            self.rows = tuple(np.concatenate(parts) for parts in zip(*blocks, strict=True))
        x, y = self.rows
        out.collect(np.append(x.T @ (x @ self.model.value() - y), float(len(y))))


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
            parts = variables.get(0).connect(inputs.get(0)).process(Descend())
            criteria = parts.flat_map(terminate_on_max_iter(rounds))
            return IterationBodyResult(
                DataStreamList.of(parts.all_reduce()),
                DataStreamList.of(parts.filter(_never)),
                criteria,
            )

        start = job.from_collection([np.zeros(COLUMNS + 1)] * parallelism, parallelism)
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
    """Seconds per epoch of the plain loop, on one core."""
    model = np.zeros(COLUMNS)
    with threadpool_limits(1):
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
    job.execute_async(build, {"result": FileOutput(folder)}).wait(note)
    if len(seen) < 2:
        raise SystemExit(f"{folder.name}: it ended before its epochs were seen; more --rounds")
    (first_s, first), (last_s, last) = seen[0], seen[-1]
    return first_s - began, (last_s - first_s) / max(1, last - first)


def checkpoints(job: IterationJob, address: str, build: Any, folder: Path) -> str:
    """Run a job; what to say of the checkpoints that were begun while it iterated."""
    seen: dict[int, dict[str, Any]] = {}
    rest, began_ms = FlinkRest(address), 0.0

    def note(status: Any) -> None:
        nonlocal began_ms
        if status[0].get("epoch") is not None and status[0]["state"] == "running":
            began_ms = began_ms or 1000 * float(status[0]["at"])
            for one in rest.checkpoints(running.job_id)["history"]:
                if one["trigger_timestamp"] > began_ms and not one["is_savepoint"]:
                    seen[one["id"]] = one

    running = job.execute_async(build, {"result": FileOutput(folder)})
    running.wait(note)
    # Flink reports the newest ten only, every few seconds; and the last of all may have been
    # begun when the iteration had ended
    reported = [seen[number] for number in sorted(seen)[:-1]]
    between = [
        later["trigger_timestamp"] - one["trigger_timestamp"]
        for one, later in pairwise(reported)
        if later["id"] == one["id"] + 1
    ]
    took = [one["end_to_end_duration"] for one in reported if one["status"] == "COMPLETED"]
    if len(between) < 3 or not took:
        return f"{len(between)} intervals seen: too few, more --rounds"
    return (
        f"{len(took)} of {len(reported)} done, between two: mean {statistics.mean(between):.0f} "
        f"median {statistics.median(between):.0f} most {max(between)} ms; "
        f"took: median {statistics.median(took):.0f} most {max(took)} ms"
    )


@contextmanager
def cluster(
    state_dir: Path, slots: int, task_manager_mb: int = 2500, off_heap_mb: int = 0
) -> Iterator[str]:
    """A session cluster that ends with the block."""
    local = LocalCluster(state_dir)
    shape = ClusterShape(slots=slots, task_manager_mb=task_manager_mb, off_heap_mb=off_heap_mb)
    try:
        yield local.start(shape).address
    finally:
        local.stop()


def spread(values: list[float]) -> str:
    """The least, the median and the most."""
    return f"{min(values):.2f}, {statistics.median(values):.2f}, {max(values):.2f}"


@dataclass(frozen=True)
class Measure:
    """The measurements of one mode; ``often`` is a job with more checkpoints."""

    job: IterationJob
    often: IterationJob
    mode: str
    rounds: int
    parallelism: int
    x: np.ndarray
    y: np.ndarray

    def once(self, folder: Path) -> tuple[float, float, float]:
        """Print one run; return ms of an empty epoch, of an epoch of descent, and of NumPy's."""
        rounds, p = self.rounds, self.parallelism
        start_s, empty_s = run(self.job, empty(rounds, p), Path(f"{folder}-empty"))
        before = numpy_epoch_s(self.x, self.y, 200)
        _, descent_s = run(self.job, descent(rounds, p, self.x, self.y), Path(f"{folder}-descent"))
        plain = min(before, numpy_epoch_s(self.x, self.y, 200))
        print(
            f"{self.mode:8} start {start_s:5.2f} s   empty {1000 * empty_s:6.2f} ms/epoch   "
            f"descent {1000 * descent_s:6.2f}   numpy {1000 * plain:6.2f}   "
            f"descent above twice numpy's: {1000 * (descent_s - 2 * plain):6.2f} ms",
            flush=True,
        )
        return 1000 * empty_s, 1000 * descent_s, 1000 * plain

    def repeat(self, runs: int, folder: Path) -> None:
        """Print each of several runs, and the least, the median and the most of them."""
        seen = [self.once(Path(f"{folder}-{number}")) for number in range(runs)]
        print(f"{self.mode:8} of {runs} runs, least, median, most:")
        print(f"{self.mode:8} empty epoch          {spread([one[0] for one in seen])} ms")
        above = [descent_ms - 2 * plain_ms for _, descent_ms, plain_ms in seen]
        print(f"{self.mode:8} above twice numpy's  {spread(above)} ms")

    def trace(self, folder: Path) -> None:
        """Print the hops of an empty epoch."""
        with traced(Path(f"{folder}-trace")):
            run(self.job, empty(self.rounds, self.parallelism), Path(f"{folder}-traced"))
        for hop, took_ms in hops(*read_events(Path(f"{folder}-trace"))).items():
            print(f"{self.mode:8} {took_ms:7.2f} ms  {hop}")

    def checkpoints(self, address: str, interval_ms: int, folder: Path) -> None:
        """Print whether checkpoints keep their interval."""
        for name, build in (
            ("empty", empty(2 * self.rounds, self.parallelism)),
            ("descent", descent(self.rounds, self.parallelism, self.x, self.y)),
        ):
            reported = checkpoints(self.often, address, build, Path(f"{folder}-{name}-often"))
            print(f"{self.mode:8} {name:8} every {interval_ms} ms: {reported}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--modes", nargs="+", default=["thread", "process"])
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument(
        "--rounds",
        type=int,
        help="default: 2000 in threads, 200 in processes; with --runs 500 and 100",
    )
    parser.add_argument("--interval-ms", type=int, default=100)
    parser.add_argument("--runs", type=int, help="repeat, without checkpoints, and print each run")
    parser.add_argument("--trace", action="store_true", help="the hops of an empty epoch only")
    parser.add_argument("--bundle-ms", type=int, default=2)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(arguments.rows, COLUMNS))
    y = x @ rng.normal(size=COLUMNS)
    with tempfile.TemporaryDirectory() as folder, RedisServer() as redis:
        state_dir = Path(folder) / "state"
        with cluster(state_dir, 4 * arguments.parallelism) as address:
            for mode in arguments.modes:
                thread = mode == "thread"
                default = (500 if thread else 100) if arguments.runs else 2_000 if thread else 200
                env = open_stream_environment(address, state_dir=state_dir)
                job, often = (
                    IterationJob(
                        env,
                        settings=IterationSettings(
                            mode=mode,
                            wire=redis.url,
                            checkpoint_interval_ms=interval_ms,
                            bundle_ms=arguments.bundle_ms,
                        ),
                        cluster=address,
                        state_dir=state_dir,
                    )
                    for interval_ms in (500, arguments.interval_ms)
                )
                measure = Measure(
                    job, often, mode, arguments.rounds or default, arguments.parallelism, x, y
                )
                warm = FileOutput(Path(folder) / f"{mode}-warm")
                job.execute(empty(10, measure.parallelism), {"result": warm})
                own = Path(folder) / mode
                if arguments.trace:
                    measure.trace(own)
                elif arguments.runs:
                    measure.repeat(arguments.runs, own)
                else:
                    measure.once(own)
                    measure.checkpoints(address, arguments.interval_ms, own)


if __name__ == "__main__":
    main()
