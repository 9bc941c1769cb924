"""Nothing is left behind: no thread, no file, no shared memory, however a loop ends."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from paimon_features.core.errors import RequestError
from paimon_features.lake.catalog import Lake
from tests.long_cases import quick_cases
from tests.trainer_bridge.leaks import kept_each_time, shared_memory
from trainer_bridge.readers.block_store import BlockStore
from trainer_bridge.readers.snapshot_reader import SnapshotReader
from trainer_bridge.testing.sample_tables import make_samples, x_by_row_number

OPTIONS: dict[str, Any] = {"columns": ["x"], "batch_size": 5, "block_rows": 16, "threads": 3}
SIZES = (9, 3, 17, 30, 1, 26, 8, 13)


def held() -> tuple[list[str], list[str], list[str]]:
    """Threads of ours, files that are open or mapped, and shared memory."""
    gc.collect()
    threads = sorted(t.name for t in threading.enumerate() if t.name.startswith("snapshot"))
    links = [Path(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    files = sorted(os.readlink(link) for link in links if link.is_symlink())
    maps = Path("/proc/self/maps").read_text().splitlines()
    mapped = [line.split()[-1] for line in maps if ".parquet" in line]
    parquet = [name for name in files if ".parquet" in name]
    return threads, parquet + mapped, shared_memory(os.getpid())


@contextmanager
def leaving_nothing() -> Iterator[None]:
    before = held()
    yield
    assert held() == before


def break_off(reader: SnapshotReader) -> None:
    for _ in reader:
        return


def fail_in_the_loop(reader: SnapshotReader) -> None:
    with pytest.raises(ZeroDivisionError):
        assert all(1 // int(batch["x"].sum() * 0) for batch in reader)


def close_in_the_loop(reader: SnapshotReader) -> None:
    for _ in reader:
        reader.close()


def begin_another_loop(reader: SnapshotReader) -> None:
    first = iter(reader)
    next(first)
    second = iter(reader)
    next(second)
    with pytest.raises(RequestError, match="used by another loop"):
        next(first)


def never_look_at_it(reader: SnapshotReader) -> None:
    iter(reader)


def wait_with_all_threads_ahead(reader: SnapshotReader) -> None:
    batches = iter(reader)
    next(batches)
    # one chunk has all rows: the producer ends when nobody needs it any longer
    while any(t.name == "snapshot-reader" for t in threading.enumerate()):
        time.sleep(0.001)


ENDINGS = (
    break_off,
    fail_in_the_loop,
    close_in_the_loop,
    begin_another_loop,
    never_look_at_it,
    wait_with_all_threads_ahead,
)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("threads", [0, 3, "auto"])
def test_a_loop_that_ends_before_its_end_leaves_nothing(
    lake: Lake, ending: Callable[[SnapshotReader], None], threads: int | str
) -> None:
    table = make_samples(lake, SIZES)
    with leaving_nothing():
        reader = SnapshotReader(lake, table, **{**OPTIONS, "threads": threads})
        for _ in range(3):
            ending(reader)
        del reader


def test_no_ending_keeps_a_descriptor(lake: Lake) -> None:
    table = make_samples(lake, SIZES)

    def loops() -> None:
        for ending in ENDINGS:
            ending(SnapshotReader(lake, table, **OPTIONS))

    assert kept_each_time(loops) <= 0


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt, SystemExit])
def test_an_error_in_a_decoding_thread_reaches_the_loop_and_ends_all_threads(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    table = make_samples(lake, SIZES)
    # not a list and its length: several threads call it
    decode, turns = BlockStore._decode, itertools.count(1)

    def dying(self: BlockStore, number: int) -> Any:
        if next(turns) == 3:
            raise error("in a thread")
        return decode(self, number)

    # a budget of few blocks at a time, so that the third is no longer the first chunk's
    options = {**OPTIONS, "byte_budget": 2_500, "canonical_streams": 12}
    with SnapshotReader(lake, table, **options) as reader:
        wanted = [batch["x"].tolist() for batch in reader]
    with leaving_nothing():
        reader = SnapshotReader(lake, table, **options)
        monkeypatch.setattr(BlockStore, "_decode", dying)
        found: list[list[int]] = []
        with pytest.raises(error, match="in a thread"):
            found.extend(batch["x"].tolist() for batch in reader)
        # what was handed out counts, and the same reader continues from there
        assert found == wanted[: len(found)]
        rest = [batch["x"].tolist() for batch in reader]
        assert found + rest == wanted
        del reader


_PROGRAM = """
import sys, threading, time
from paimon_features.lake.catalog import Lake
from trainer_bridge.readers.snapshot_reader import SnapshotReader

lake = Lake.open(sys.argv[1], "features")
reader = SnapshotReader(lake, "samples", columns=["x"], batch_size=2, threads=3, byte_budget=2_500)
batches = iter(reader)
next(batches)
print("reading", flush=True)
if sys.argv[2] == "exit":
    sys.exit(3)
if sys.argv[2] == "error":
    raise RuntimeError("in the training loop")
time.sleep(60)
"""


@pytest.mark.parametrize("ending", quick_cases(["exit", "error", "killed"], "killed"))
def test_a_process_that_ends_in_mid_read_ends_at_once_and_leaves_the_table_complete(
    lake: Lake, ending: str
) -> None:
    table = make_samples(lake, SIZES)
    program = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, lake.warehouse, ending],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "reading\n"
    if ending == "killed":
        program.send_signal(signal.SIGKILL)
    _, errors = program.communicate(timeout=120)
    assert program.returncode == {"exit": 3, "error": 1, "killed": -signal.SIGKILL}[ending]
    assert ("in the training loop" in errors) == (ending == "error")
    assert errors.count("Traceback") <= 1
    assert shared_memory(program.pid) == []
    assert sorted(x_by_row_number(lake, table)) == list(range(sum(SIZES)))
