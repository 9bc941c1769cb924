"""The sum of a model over all subtasks, once an epoch: an all-reduced feedback edge beside others.

    python -m benchmarks.all_reduce --modes thread process --sizes 1000 10000 100000 1000000
    python -m benchmarks.all_reduce --sizes 10000000 --task-manager-mb 7000

``all-reduce`` feeds the parts back by ``all_reduce()``. ``head-and-tail`` is the same without it:
the parts are broadcast to a stage that adds them up and feeds the sum back. ``ring`` is what the
sum alone takes in processes that send each other halves over sockets of this machine, without
Flink, checkpoints or state: what a ring of workers could reach at best. Every epoch each subtask
contributes an array of so many float64 numbers and has received the sum of the epoch before, which
it keeps as state. The ways take turns, ``--repeats`` times; seconds an epoch, by what the head says
between its first report and its last; the least of the turns and their median.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.iteration import cluster, run
from paimon_features.iteration import (
    DataStreamList,
    IterationBodyResult,
    IterationConfig,
    IterationListener,
    ReplayableDataStreamList,
    iterate_bounded_streams_until_termination,
)
from paimon_features.iteration.flink import (
    FileOutput,
    IterationJob,
    IterationSettings,
    open_stream_environment,
)
from paimon_features.iteration.flink.memory_limits import OFF_HEAP_SHARE
from paimon_features.testing.servers.redis_server import RedisServer


class Contribute(IterationListener):
    """Keeps the sum as its state, and contributes a part that depends on it."""

    def process_element(self, total: np.ndarray, ctx: Any, out: Any) -> None:
        ctx.state.value("total").update(total)

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        part = ctx.state.value("total").value() * 0.5
        part += ctx.subtask
        out.collect(part)


class Tag(Contribute):
    """The same, whose parts say where they come from."""

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        part = ctx.state.value("total").value() * 0.5
        part += ctx.subtask
        out.collect((ctx.subtask, part))


class Add(IterationListener):
    """Adds the parts of an epoch up, in the order of the subtasks."""

    def process_element(self, part: tuple[int, np.ndarray], ctx: Any, out: Any) -> None:
        ctx.state.map("parts").put(part[0], part[1])

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        parts = ctx.state.map("parts")
        ordered = [part for _, part in sorted(parts.items(), key=lambda item: item[0])]
        parts.clear()
        total = ordered[0].copy()
        for part in ordered[1:]:
            total += part
        out.collect(total)


def all_reduced(stream: Any) -> Any:
    """Feed the parts of a variable back by ``all_reduce()``."""
    return stream.process(Contribute()).all_reduce()


def head_and_tail(stream: Any) -> Any:
    """Broadcast the parts of a variable, and feed their sum back."""
    return stream.process(Tag()).broadcast().process(Add())


def program(
    way: Callable[[Any], Any], numbers: int, rounds: int, parallelism: int
) -> Callable[[Any], Any]:
    def build(job: Any) -> Any:
        def body(variables: DataStreamList, _: DataStreamList) -> IterationBodyResult:
            return IterationBodyResult(
                DataStreamList.of(way(variables.get(0))),
                DataStreamList.of(variables.get(0).filter(_never)),
            )

        # a collection is sent with the job: the arrays are made where it runs
        start = job.from_collection([numbers] * parallelism, parallelism).map(np.zeros)
        return iterate_bounded_streams_until_termination(
            DataStreamList.of(start),
            ReplayableDataStreamList.not_replay(),
            IterationConfig(max_rounds=rounds),
            body,
        ).get(0)

    return build


def _never(_: Any) -> bool:
    return False


def ring_s(numbers: int, rounds: int, parallelism: int) -> float:
    """Seconds per sum of a ring of processes: reduce-scatter, then all-gather."""
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(parallelism)]
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    members = [
        context.Process(target=_member, args=(servers, rank, numbers, rounds, results))
        for rank in range(parallelism)
    ]
    for member in members:
        member.start()
    took = max(results.get() for _ in members)
    for member in members:
        member.join()
    for server in servers:
        server.close()
    return took


def _member(
    servers: list[socket.socket], rank: int, numbers: int, rounds: int, results: Any
) -> None:
    size = len(servers)
    following = socket.create_connection(servers[(rank + 1) % size].getsockname())
    before, _ = servers[rank].accept()
    for one in (following, before):
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        one.setblocking(False)
    mine = np.full(numbers, float(rank))
    slices = np.array_split(mine, size)
    room = np.empty(-(-numbers // size))
    for number in range(rounds + 1):
        if number == 1:  # the first one connects and touches the memory
            began = time.perf_counter()
        for step in range(size - 1):
            target = slices[(rank - step - 1) % size]
            _exchange(following, slices[(rank - step) % size], before, room[: len(target)])
            target += room[: len(target)]
        for step in range(size - 1):
            target = slices[(rank - step) % size]
            _exchange(following, slices[(rank - step + 1) % size], before, target)
    results.put((time.perf_counter() - began) / rounds)


def _exchange(
    following: socket.socket, out: np.ndarray, before: socket.socket, into: np.ndarray
) -> None:
    """Send one slice while another one arrives."""
    import select

    left, wanted = memoryview(out).cast("B"), memoryview(into).cast("B")
    while left or wanted:
        readable, writable, _ = select.select(
            [before] if wanted else [], [following] if left else [], []
        )
        if readable:
            wanted = wanted[before.recv_into(wanted) :]
        if writable:
            left = left[following.send(left) :]


def rounds_of(numbers: int, mode: str) -> int:
    """So many epochs that a turn takes a second or a few."""
    most = 600 if mode == "thread" else 100
    return max(6, min(most, 20_000_000 // numbers))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--modes", nargs="+", default=["thread", "process"])
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--task-manager-mb", type=int, default=4000)
    arguments = parser.parse_args()
    p = arguments.parallelism
    ways = {"all-reduce": all_reduced, "head-and-tail": head_and_tail}
    with tempfile.TemporaryDirectory() as folder, RedisServer() as redis:
        state_dir = Path(folder) / "state"
        # what records of processes need
        off_heap_mb = OFF_HEAP_SHARE * 8 * max(arguments.sizes) >> 20
        with cluster(state_dir, 3 * p + 1, arguments.task_manager_mb, off_heap_mb) as address:
            env = open_stream_environment(address, state_dir=state_dir)
            for mode in arguments.modes:
                settings = IterationSettings(
                    mode=mode, wire=redis.url, checkpoint_interval_ms=2_000
                )
                job = IterationJob(env, settings=settings, cluster=address, state_dir=state_dir)
                warm = FileOutput(Path(folder) / f"{mode}-warm")
                job.execute(program(all_reduced, 10, 10, p), {"result": warm})
                for numbers in arguments.sizes:
                    rounds = rounds_of(numbers, mode)
                    taken: dict[str, list[float]] = {way: [] for way in [*ways, "ring"]}
                    for turn in range(arguments.repeats):
                        for way, feed in ways.items():
                            into = Path(folder) / f"{mode}-{numbers}-{way}-{turn}"
                            taken[way].append(run(job, program(feed, numbers, rounds, p), into)[1])
                        taken["ring"].append(ring_s(numbers, min(rounds, 50), p))
                    for way, seconds in taken.items():
                        print(
                            f"{mode:8} {numbers:10,} numbers  {way:14} least "
                            f"{1000 * min(seconds):9.2f} median "
                            f"{1000 * statistics.median(seconds):9.2f} ms/epoch",
                            flush=True,
                        )


if __name__ == "__main__":
    main()
