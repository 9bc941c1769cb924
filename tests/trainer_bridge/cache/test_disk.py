"""The shared folder: whole files or none, whatever happens to the jobs that use it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.errors import ConfigurationError
from trainer_bridge.cache import BlockCache, DiskCache
from trainer_bridge.cache.block_files import DamagedBlock, read_block, write_block


def block(number: int, rows: int = 100) -> pa.Table:
    """Rows that follow from the number."""
    numbers = np.arange(rows) + 1000 * number
    matrix = pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(numbers, 3)), 3)
    return pa.table({"x": numbers, "m": matrix, "s": [f"row {n}" for n in numbers]})


def never() -> pa.Table:
    raise AssertionError("computed, although it is cached")


# --- files ---


def test_a_block_comes_back_as_it_was_written_and_costs_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "b"
    table = block(1, 50_000)
    assert write_block(path, table) == path.stat().st_size
    before = pa.total_allocated_bytes()
    found = read_block(path)
    assert found.equals(table)
    assert pa.total_allocated_bytes() - before < 10_000
    empty = table.slice(0, 0)
    write_block(path, empty)
    assert read_block(path).equals(empty)


def test_every_cut_and_every_changed_byte_is_found(tmp_path: Path) -> None:
    path = tmp_path / "b"
    write_block(path, block(1, 3))
    data = path.read_bytes()
    for length in range(0, len(data), 7):
        path.write_bytes(data[:length])
        with pytest.raises(DamagedBlock):
            read_block(path)
    for place in range(0, len(data), 5):
        changed = bytearray(data)
        changed[place] ^= 0x10
        path.write_bytes(changed)
        with pytest.raises(DamagedBlock):
            read_block(path)


# --- the folder ---


def test_a_second_job_finds_what_the_first_made(tmp_path: Path) -> None:
    first = DiskCache(tmp_path).open("k", {"table": "t"})
    for number in range(3):
        assert first.get_or_make(number, lambda n=number: block(n)).equals(block(number))
    second = DiskCache(tmp_path).open("k", {"table": "t"})
    for number in range(3):
        assert second.get_or_make(number, never).equals(block(number))
    assert (first.stats.written, first.stats.hits) == (3, 0)
    assert (second.stats.written, second.stats.hits) == (0, 3)
    other = DiskCache(tmp_path).open("other", {})
    assert other.get(0) is None
    [entry, _] = DiskCache(tmp_path).entries()
    assert (entry["key"], entry["blocks"], entry["plan"]) == ("k", 3, {"table": "t"})
    assert entry["bytes"] == DiskCache(tmp_path).used_bytes() > 0


def test_a_damaged_block_is_reported_and_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    DiskCache(tmp_path).open("k", {}).get_or_make(7, lambda: block(7))
    [path] = tmp_path.glob("k/*.block")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    plan = DiskCache(tmp_path).open("k", {})
    assert plan.get_or_make(7, lambda: block(7)).equals(block(7))
    assert (plan.stats.damaged, plan.stats.written) == (1, 1)
    assert f"damaged and will be recomputed: {path}" in caplog.text
    assert DiskCache(tmp_path).open("k", {}).get_or_make(7, never).equals(block(7))


def test_a_full_disk_stops_the_writing_and_not_the_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plan = DiskCache(tmp_path).open("k", {})
    plan.get_or_make(0, lambda: block(0))

    def full(self: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    for number in (1, 2):
        assert plan.get_or_make(number, lambda n=number: block(n)).equals(block(number))
    assert plan.get_or_make(0, never).equals(block(0))
    assert (plan.stats.failed, plan.stats.written, plan.stats.hits) == (1, 1, 1)
    assert caplog.text.count(f"no longer writing to the cache {tmp_path / 'k'}: [Errno 28]") == 1
    assert not list(tmp_path.glob("k/*.part*"))


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
def test_a_folder_that_cannot_be_made_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    plan = DiskCache("/dev/full/cache").open("k", {})
    assert plan.get_or_make(0, lambda: block(0)).equals(block(0))
    assert plan.stats.failed >= 1
    assert "no longer writing to the cache" in caplog.text


def test_what_nobody_has_open_makes_room_and_the_oldest_first(tmp_path: Path) -> None:
    size = write_block(tmp_path / "size", block(1))
    (tmp_path / "size").unlink()
    for age, key in enumerate(["new", "middle", "old", "open"]):
        plan = DiskCache(tmp_path).open(key, {})
        plan.get_or_make(0, lambda: block(1))
        used_s = time.time() - 100 * age
        os.utime(tmp_path / key / ".in-use", (used_s, used_s))
        if key != "open":
            plan.close()
        else:
            in_use = plan
    cache = DiskCache(tmp_path, max_bytes=5 * size)
    mine = cache.open("mine", {})
    for number in range(1, 4):
        mine.get_or_make(number, lambda n=number: block(n))
    assert {entry["key"] for entry in cache.entries()} == {"new", "open", "mine"}
    for number in range(4, 7):
        mine.get_or_make(number, lambda n=number: block(n))
    assert {entry["key"] for entry in cache.entries()} == {"open", "mine"}
    assert cache.used_bytes() <= 5 * size
    assert mine.stats.written == 4
    assert mine.stats.refused == 1  # and is not tried again for a while
    assert in_use.get_or_make(0, never).equals(block(1))
    assert not list(tmp_path.rglob("*.part"))


def test_a_limit_below_one_byte_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="max_bytes=0"):
        DiskCache(tmp_path, max_bytes=0)
    with pytest.raises(ConfigurationError, match="memory_bytes=-1"):
        BlockCache(-1)


def test_parts_of_killed_writers_go_after_an_hour(tmp_path: Path) -> None:
    (tmp_path / "k").mkdir()
    old, young = tmp_path / "k/1.block.9-a.part", tmp_path / "k/1.block.9-b.part"
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 7200,) * 2)
    DiskCache(tmp_path).open("k", {})
    assert not old.exists()
    assert young.exists()


def _make_all(folder: str, turn: int, made: list[int]) -> None:
    plan = DiskCache(folder).open("k", {})
    for i in range(12):
        number = (i + 5 * turn) % 12

        def make(number: int = number) -> pa.Table:
            made.append(number)
            time.sleep(0.01)
            return block(number)

        assert plan.get_or_make(number, make).equals(block(number))


def _python(script: str, *arguments: str) -> subprocess.Popen[str]:
    """A process that can import this module as ``test_disk``."""
    here = Path(__file__).parent
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "PYTHONPATH": f"{here}{os.pathsep}{here.parents[2]}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


_JOB = """
import sys
from test_disk import _make_all
print("ready", flush=True)
input()
made = []
_make_all(sys.argv[1], int(sys.argv[2]), made)
print(*made)
"""


def test_jobs_at_once_compute_each_block_once(tmp_path: Path) -> None:
    jobs = [_python(_JOB, str(tmp_path), str(turn)) for turn in range(2)]
    for job in jobs:
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"
    made = []
    for job in jobs:
        assert job.stdin is not None
        job.stdin.write("\n")
        job.stdin.flush()
    for job in jobs:
        made += job.communicate(timeout=300)[0].split()
        assert job.returncode == 0
    assert sorted(map(int, made)) == list(range(12))


def test_threads_at_once_compute_each_block_once(tmp_path: Path) -> None:
    made: list[int] = []
    threads = [
        threading.Thread(target=_make_all, args=(str(tmp_path), turn, made)) for turn in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == list(range(12))


_WRITER = """
import sys
from test_disk import block
from trainer_bridge.cache import DiskCache
plan = DiskCache(sys.argv[1]).open("k", {})
print("ready", flush=True)
while True:
    for number in range(20):
        plan.get_or_make(number, lambda: block(number, 20_000))
        (plan.folder / f"{number:08d}.block").unlink(missing_ok=True)
"""


def test_a_killed_writer_leaves_no_lock_and_no_broken_block(tmp_path: Path) -> None:
    dice = np.random.default_rng(0)
    writers = [_python(_WRITER, str(tmp_path)) for _ in range(3)]
    for writer in writers:
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(dice.uniform(0.02, 0.2))
        writer.kill()
        writer.communicate()
    plan = DiskCache(tmp_path, wait_s=5).open("k", {})
    for number in range(20):
        found = plan.get_or_make(number, lambda n=number: block(n, 20_000))
        assert found.equals(block(number, 20_000))
    assert plan.stats.damaged == 0


def test_a_job_that_hangs_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    hanging = DiskCache(tmp_path).open("k", {})
    inside, go_on = threading.Event(), threading.Event()

    def hang() -> pa.Table:
        inside.set()
        go_on.wait(120)
        return block(0)

    thread = threading.Thread(target=hanging.get_or_make, args=(0, hang))
    thread.start()
    inside.wait()
    plan = DiskCache(tmp_path, wait_s=0.05).open("k", {})
    assert plan.get_or_make(0, lambda: block(0)).equals(block(0))
    go_on.set()
    thread.join()


# --- tiers ---


def test_memory_stands_over_disk_and_both_are_counted(tmp_path: Path) -> None:
    size = block(0).nbytes
    cache = BlockCache(int(2.5 * size), DiskCache(tmp_path).open("k", {}))
    for _ in range(3):
        for number in range(4):
            assert cache.get(number, lambda n=number: block(n)).equals(block(number))
    stats = cache.stats
    assert (stats.memory_hits, stats.disk_hits, stats.computed) == (4, 4, 4)
    assert (stats.memory_blocks, stats.disk_written) == (2, 4)
    assert stats.memory_bytes <= 2.5 * size
    assert stats.hit_rate == pytest.approx(8 / 12)
    assert "12 blocks: 4 from memory, 4 from disk, 4 computed (67 % hits)" in str(stats)
    cache.close()
    assert cache.stats.memory_bytes == 0


def test_memory_does_not_change_with_the_arrays_that_it_was_given() -> None:
    cache = BlockCache(1 << 20)
    array = np.arange(5)
    cache.get(0, lambda: pa.table({"x": array}))
    array[:] = 0
    assert cache.get(0, never)["x"].to_pylist() == [0, 1, 2, 3, 4]
