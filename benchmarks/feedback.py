"""Feedback: events per second that one process writes into the lake, and what it costs.

    python -m benchmarks.feedback --events 4000000 --repeats 3
    python -m benchmarks.feedback --queue 1 2

One ``FeedbackWriter`` commits to a table on this disk; calls have 1,024 samples, as the steps of a
training have. ``write`` is the training step's own share: what a call takes of its processor time.
``wall`` counts from the first call until the last event is committed; ``cpu`` is the processor time
of the whole process, the committing thread among it. The contenders take turns:

* ``int64`` and ``text + int64``: the writer, with one key and with a composite one;
* ``correct``: the same, and the writer also finds out which samples were forgotten;
* ``append``: the same rows, ready-made, by one ``append_arrow`` per 500,000: what the table takes;
* ``queue, 2 ranks`` (``--queue 2``): the events shared by two writers, each in its own process,
  which hand them over by a stream of a Redis server; one ``FeedbackDrain`` in this process commits.
  ``wall`` counts until every writer knows that all its events are in the table, ``cpu`` the time of
  the ranks and the drain together, ``drain`` that of the drain alone; the server is in neither.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from paimon_features.core.types.schema import DataType, Int64, String
from paimon_features.lake import Lake, append_arrow, read_arrow
from paimon_features.online.store import open_queue
from paimon_features.testing.servers.redis_server import RedisServer
from trainer_bridge import FeedbackDrain, FeedbackWriter

BATCH = 1_024
CALLS_PER_COMMIT = 500

Keys = dict[str, Any]


@dataclass(frozen=True)
class Turn:
    """Events per second of wall time and of processor time, microseconds of a call.

    ``drain``: events per second of the drain's processor time, 0 where there is none.
    """

    wall: float
    cpu: float
    write_us: float
    drain: float = 0.0


def int_keys(samples: np.ndarray) -> Keys:
    """The sample's number."""
    return {"sample_id": samples}


def text_keys(samples: np.ndarray) -> Keys:
    """A text of 13 bytes and a number."""
    return {
        "user": pa.array([f"user-{sample % 100_000:08d}" for sample in samples.tolist()]),
        "item": samples,
    }


def batches(events: int, keys: Callable[[np.ndarray], Keys]) -> Iterator[tuple[Keys, Any, Any]]:
    """Steps over two epochs in random order, each sample once an epoch."""
    rng = np.random.default_rng(0)
    samples = np.concatenate([rng.permutation(events // 2) for _ in range(2)])
    for start in range(0, len(samples), BATCH):
        part = samples[start : start + BATCH]
        losses = rng.exponential(1.0, len(part)).astype(np.float32)
        yield keys(part), losses, losses < 0.7


def measure(lake: Lake, name: str, kinds: dict[str, DataType], steps: Sequence[Any]) -> Turn:
    """One writer for all steps."""
    total = sum(len(losses) for _, losses, _ in steps)
    writer = FeedbackWriter(lake, name, kinds, "warm-up", max_block_s=60)
    writer.write(*steps[0][:2], 0)
    writer.close()
    with FeedbackWriter(lake, name, kinds, "run", max_block_s=60) as writer:
        wall, cpu = time.perf_counter(), time.process_time()
        writing = write_all(writer, steps)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        assert writer.stats.committed == total
    return Turn(total / wall, total / cpu, 1e6 * writing / len(steps))


def write_all(writer: FeedbackWriter, steps: Sequence[Any]) -> float:
    """All steps, committed when it returns; the seconds of processor time within ``write``."""
    writing = 0.0
    for step, (keys, losses, correct) in enumerate(steps):
        before = time.thread_time()
        writer.write(keys, losses, step, correct)
        writing += time.thread_time() - before
    writer.flush()
    return writing


def hand_over(warehouse: str, url: str, rank: int, ranks: int, events: int, pipe: Any) -> None:
    """One rank: a process that writes its share of the events through the queue."""
    steps = [(k, losses, None) for k, losses, _ in batches(events, int_keys)][rank::ranks]
    queue = open_queue(url, "bench")
    lake = Lake.open(Path(warehouse), "bench")
    with FeedbackWriter(
        lake, "queue", {"sample_id": Int64}, "run", rank=rank, through=queue, max_block_s=60
    ) as writer:
        pipe.send("ready")
        pipe.recv()
        cpu = time.process_time()
        writing = write_all(writer, steps)
        pipe.send((time.process_time() - cpu, writing / len(steps)))
    queue.close()


def measure_queue(events: int, ranks: int) -> Turn:
    """The same events from several processes, committed by one drain in this one."""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, RedisServer() as server:
        lake, queue = Lake.open(Path(folder), "bench"), open_queue(server.url, "bench")
        pipes, processes = [], []
        with FeedbackDrain(lake, "queue", {"sample_id": Int64}, queue=queue) as drain:
            for rank in range(ranks):
                pipe, theirs = spawn.Pipe()
                pipes.append(pipe)
                given = (folder, server.url, rank, ranks, events, theirs)
                processes.append(spawn.Process(target=hand_over, args=given, daemon=True))
                processes[-1].start()
                theirs.close()  # so that a rank that ends early is an error here, not a wait
            assert all(pipe.recv() == "ready" for pipe in pipes)
            wall, cpu = time.perf_counter(), time.process_time()
            for pipe in pipes:
                pipe.send("go")
            found = [pipe.recv() for pipe in pipes]
            wall, drained = time.perf_counter() - wall, time.process_time() - cpu
        for process in processes:
            process.join()
        queue.close()
        assert drain.rows == read_arrow(lake, "feedback_queue", ["sample_id"]).num_rows == events
    spent = drained + sum(cpu for cpu, _ in found)
    calls = statistics.fmean(seconds for _, seconds in found)
    return Turn(events / wall, events / spent, 1e6 * calls, events / drained)


def append(lake: Lake, name: str, steps: Sequence[Any]) -> Turn:
    """The rows as a table, in commits of half a million."""
    total = sum(len(losses) for _, losses, _ in steps)
    tables = []
    for start in range(0, len(steps), CALLS_PER_COMMIT):
        part = steps[start : start + CALLS_PER_COMMIT]
        size = sum(len(losses) for _, losses, _ in part)
        losses = np.concatenate([losses for _, losses, _ in part]).astype(np.float64)
        columns = {
            "sample_id": np.concatenate([keys["sample_id"] for keys, _, _ in part]),
            "run_id": pa.repeat("run", size),
            "rank": np.zeros(size, np.int32),
            "seq": np.arange(size) // BATCH,
            "step": np.arange(size) // BATCH,
            "loss": losses,
            "event_time_ms": np.full(size, 1_700_000_000_000),
            "model_version": pa.repeat("", size),
            "correct": losses < 0.7,
            "forgot": losses < 0.0,
        }
        tables.append(pa.table(columns))
    wall, cpu = time.perf_counter(), time.process_time()
    for number, table in enumerate(tables):
        append_arrow(lake, name, table, commit_user="append", commit_identifier=number + 1)
    return Turn(total / (time.perf_counter() - wall), total / (time.process_time() - cpu), 0.0)


def run(events: int, repeats: int, queue_ranks: Sequence[int] = ()) -> dict[str, list[Turn]]:
    """All contenders in turns; the tables hold what was written."""
    one, two = {"sample_id": Int64}, {"user": String, "item": Int64}
    ints, texts = list(batches(events, int_keys)), list(batches(events, text_keys))

    def untold(steps: Sequence[Any]) -> list[Any]:
        return [(keys, losses, None) for keys, losses, _ in steps]

    turns: dict[str, list[Turn]] = {}
    for number in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            lake = Lake.open(Path(folder), "bench")
            found = {
                "int64": measure(lake, "int", one, untold(ints)),
                "int64, correct": measure(lake, "int_correct", one, ints),
                "text + int64": measure(lake, "text", two, untold(texts)),
                "text + int64, correct": measure(lake, "text_correct", two, texts),
                "append": append(lake, "feedback_int", ints),
            }
            for ranks in queue_ranks:
                found[f"queue, {ranks} ranks"] = measure_queue(events, ranks)
            for name, turn in found.items():
                turns.setdefault(name, []).append(turn)
            # each event once: of the warm-up, the writer and of append
            rows = read_arrow(lake, "feedback_int", ["sample_id"]).num_rows
            assert rows == 2 * len(ints) * BATCH + BATCH, rows
        print(f"turn {number + 1} of {repeats}", flush=True)
    return turns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--events", type=int, default=4_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--queue",
        type=int,
        nargs="+",
        default=[],
        metavar="RANKS",
        help="also through a Redis stream, from so many processes",
    )
    arguments = parser.parse_args()
    events = arguments.events // (2 * BATCH) * 2 * BATCH
    turns = run(events, arguments.repeats, arguments.queue)
    base = statistics.median(turn.cpu for turn in turns["append"])
    head = f"{'':22} {'wall M/s':>9} {'cpu M/s':>8} {'cpu/append':>10} {'us a call':>9}"
    print(head + (f" {'drain M/s':>9}" if arguments.queue else ""))
    for name, side in turns.items():
        wall, cpu, write, drain = (
            statistics.median(getattr(turn, field) for turn in side)
            for field in ("wall", "cpu", "write_us", "drain")
        )
        line = f"{name:22} {wall / 1e6:9.2f} {cpu / 1e6:8.2f} {cpu / base:10.2f} {write:9.0f}"
        print(line + (f" {drain / 1e6:9.2f}" if drain else ""))


if __name__ == "__main__":
    main()
