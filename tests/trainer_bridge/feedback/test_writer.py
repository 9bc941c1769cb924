"""Feedback: committed once per run, rank and call, whatever is killed, and never in the way."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.errors import ConfigurationError, RequestError, TableError
from paimon_features.core.types.schema import Int64, String
from paimon_features.definitions import FeedbackSource
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata.snapshots import snapshots
from paimon_features.lake.ownership.fence import held
from paimon_features.lake.ownership.lease import ProcessHolder, acquire
from paimon_features.lake.reading.table_reader import read_arrow
from paimon_features.lake.table_folders import lease_folder
from tests.servers.online_servers import wait_for
from trainer_bridge.feedback import writer as feedback
from trainer_bridge.feedback.memory import LastCorrect
from trainer_bridge.feedback.writer import FeedbackWriter
from trainer_bridge.order.key_hashes import key_hashes

KEYS = {"sample_id": Int64}
TABLE = "feedback_loop"


def make(lake: Lake, **options: Any) -> FeedbackWriter:
    return FeedbackWriter(lake, "loop", KEYS, **{"run_id": "run", "clock_ms": lambda: 5, **options})


def events(lake: Lake) -> list[dict[str, Any]]:
    rows = read_arrow(lake, TABLE).to_pylist()
    return sorted(rows, key=lambda row: (row["rank"], row["seq"], row["sample_id"]))


def test_losses_that_are_no_numbers_make_no_commit_and_a_closed_writer_takes_none(
    lake: Lake,
) -> None:
    with make(lake) as writer:
        writer.write({"sample_id": [1, 2]}, [float("nan"), float("inf")], 0)
        writer.flush()
        assert list(snapshots(lake, TABLE)) == []
        writer.write({"sample_id": [3]}, [0.5], 1)
    assert [event["sample_id"] for event in events(lake)] == [3]
    assert (writer.stats.not_finite, writer.stats.written) == (2, 1)
    with pytest.raises(TableError, match="is closed"):
        writer.write({"sample_id": [4]}, [0.5], 2)


def test_every_event_is_in_the_table_after_close(lake: Lake) -> None:
    source = FeedbackSource("loop", sample_keys=KEYS)
    with FeedbackWriter(
        lake, source, run_id="run", rank=2, model_version="m1", clock_ms=lambda: 77
    ) as writer:
        assert writer.write({"sample_id": [1, 2]}, np.array([0.5, 1.5]), step=10) == 1
        writer.model_version = "m2"
        assert writer.write({"sample_id": pa.array([3])}, [2.5], 11, [True]) == 2
    first, _, last = events(lake)
    assert first == {
        "sample_id": 1,
        "run_id": "run",
        "rank": 2,
        "seq": 1,
        "step": 10,
        "loss": 0.5,
        "event_time_ms": 77,
        "model_version": "m1",
        "correct": None,
        "forgot": False,
    }
    assert (last["sample_id"], last["seq"], last["model_version"]) == (3, 2, "m2")
    assert last["correct"] is True
    assert (writer.stats.written, writer.stats.committed) == (3, 3)


def test_waiting_calls_are_committed_together(lake: Lake) -> None:
    with make(lake, flush_rows=10, flush_interval_s=600) as writer:
        for step in range(10):
            writer.write({"sample_id": [step]}, [0.1], step)
        wait_for(lambda: writer.stats.committed == 10, "the commit of ten calls")
    assert [s.commit_identifier for s in snapshots(lake, TABLE)] == [10]


def test_too_few_calls_are_committed_after_the_interval(lake: Lake) -> None:
    with make(lake, flush_rows=10, flush_interval_s=0.3) as writer:
        started = time.monotonic()
        writer.write({"sample_id": [99]}, [0.1], 10)
        wait_for(lambda: writer.stats.committed == 1, "the commit after the interval")
        assert time.monotonic() - started > 0.2


def test_losses_that_are_no_numbers_are_left_out_and_counted(lake: Lake) -> None:
    with make(lake) as writer:
        writer.write({"sample_id": [1, 2, 3, 4]}, [0.5, float("nan"), float("inf"), None], 0)
    assert [row["sample_id"] for row in events(lake)] == [1]
    assert writer.stats.not_finite == 3


def test_a_run_repeated_from_the_start_writes_nothing_twice(lake: Lake) -> None:
    for upto in (7, 20):
        with make(lake, flush_rows=3) as writer:
            for step in range(upto):
                writer.write({"sample_id": [step, step]}, [0.1, 0.2], step)
    assert [row["seq"] for row in events(lake)] == sorted([*range(1, 21)] * 2)
    assert writer.stats.skipped == 14
    assert (writer.stats.written, writer.stats.committed) == (26, 26)


def test_ranks_of_a_run_write_side_by_side(lake: Lake) -> None:
    def work(rank: int) -> None:
        with make(lake, rank=rank, flush_rows=4) as writer:
            for step in range(15):
                writer.write({"sample_id": [rank * 100 + step]}, [0.1], step)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(row["rank"], row["seq"]) for row in events(lake)] == [
        (rank, seq) for rank in range(3) for seq in range(1, 16)
    ]


def test_two_writers_of_one_run_and_rank_are_refused(lake: Lake) -> None:
    with make(lake), pytest.raises(TableError, match=r"feedback writer 'run-0': another process"):
        make(lake)
    make(lake).close()


def test_what_was_handed_over_is_a_copy(lake: Lake) -> None:
    ids, losses, right = np.arange(3), np.full(3, 0.5), np.array([True, False, True])
    with make(lake, flush_interval_s=60) as writer:
        writer.write({"sample_id": ids}, losses, 0, right)
        ids += 7  # as a training loop that uses its arrays again
        losses += 7
        right[:] = False
    found = [(row["sample_id"], row["loss"], row["correct"]) for row in events(lake)]
    assert found == [(0, 0.5, True), (1, 0.5, False), (2, 0.5, True)]


@pytest.mark.torch
def test_tensors_of_a_graph_are_taken_as_they_are(lake: Lake) -> None:
    torch = pytest.importorskip("torch")
    scale = torch.ones(2, requires_grad=True)
    loss = (scale * torch.tensor([1.0, 2.0])).bfloat16()
    with make(lake) as writer:
        writer.write({"sample_id": torch.tensor([4, 5])}, loss, 0, loss > 1.5)
    found = [(row["sample_id"], row["loss"], row["correct"]) for row in events(lake)]
    assert found == [(4, 1.0, False), (5, 2.0, True)]


def test_a_loop_may_number_its_calls_upwards(lake: Lake) -> None:
    with make(lake) as writer:
        assert writer.write({"sample_id": [1]}, [0.1], 0, seq=4) == 4
        assert writer.write({"sample_id": [2]}, [0.1], 0) == 5
        with pytest.raises(RequestError, match="call 5 after call 5; calls are numbered upwards"):
            writer.write({"sample_id": [3]}, [0.1], 0, seq=5)
        with pytest.raises(RequestError, match="is at call 5; it resumes only before the first"):
            writer.resume_after(5)
        writer.flush()
        assert (writer.seq, writer.committed) == (5, 5)
    with make(lake) as writer:
        writer.resume_after(3)
        for seq in (4, 5, 6):
            writer.write({"sample_id": [seq]}, [0.1], 0, seq=seq)
    assert [(row["seq"], row["sample_id"]) for row in events(lake)] == [(4, 1), (5, 2), (6, 6)]


# --- states ---


def test_a_state_is_taken_after_the_commit_and_resumed_by_the_repeated_run(lake: Lake) -> None:
    #  seq          1 . . 4   5 . . . . . 10     x crash
    #  state                ^ taken here
    #  second run             5 . . . . . 10 . . 12        5 to 10 are skipped
    with make(lake, flush_interval_s=60) as writer:
        for step in range(4):
            writer.write({"sample_id": [step]}, [0.1], step)
        state = writer.state_dict()
        assert len(events(lake)) == 4
        for step in range(4, 10):
            writer.write({"sample_id": [step]}, [0.1], step)
    about = {"version": 1, "run_id": "run", "rank": 0, "way": "table"}
    assert state == {**about, "seq": 4, "committed": 4}
    with make(lake) as writer:
        writer.load_state_dict(state)
        for step in range(4, 12):
            writer.write({"sample_id": [step]}, [0.1], step)
    assert [(row["sample_id"], row["seq"]) for row in events(lake)] == [
        (n, n + 1) for n in range(12)
    ]


def test_a_state_that_does_not_fit_is_refused(lake: Lake) -> None:
    with make(lake) as writer:
        writer.write({"sample_id": [1]}, [0.1], 0)
        state = writer.state_dict()
        with pytest.raises(RequestError, match="before the first call"):
            writer.load_state_dict(state)
    with make(lake, rank=1) as writer, pytest.raises(RequestError, match="expected the same"):
        writer.load_state_dict(state)
    lake.drop(TABLE)
    with make(lake) as writer, pytest.raises(TableError, match="rolled back or recreated"):
        writer.load_state_dict(state)


_TRAINER = """
    import json, os, sys, time
    from pathlib import Path
    from paimon_features.core.types.schema import Int64
    from paimon_features.lake.catalog import Lake
    from trainer_bridge.feedback.writer import FeedbackWriter

    warehouse, checkpoint, stop = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    print("ready", flush=True)
    writer = FeedbackWriter(Lake.open(warehouse, "features"), "loop", {"sample_id": Int64},
                            "run", flush_rows=6, flush_interval_s=0.02)
    step = 0
    if checkpoint.exists():
        saved = json.loads(checkpoint.read_text())
        step = saved["step"]
        writer.load_state_dict(saved["feedback"])
    print("open", flush=True)
    while not (stop.exists() and checkpoint.exists()):
        writer.write({"sample_id": [step, step + 10**6]}, [0.5, 1.5], step, [True, step % 2 == 0])
        step += 1
        time.sleep(0.003)
        if step % 9 == 0:
            state = {"step": step, "feedback": writer.state_dict()}
            checkpoint.with_suffix(".new").write_text(json.dumps(state))
            os.replace(checkpoint.with_suffix(".new"), checkpoint)
    writer.close()
    print(step, flush=True)
"""


KILLS = int(os.environ.get("PAIMON_FEATURES_KILLS", "2"))


@pytest.mark.long
@pytest.mark.timeout(120 + 10 * KILLS)
def test_a_training_killed_again_and_again_loses_and_doubles_nothing(
    lake: Lake, tmp_path: Path
) -> None:
    #  steps        0 ........ 9 ........ 18 . x          kill -9, at any moment
    #  checkpoints             ^          ^
    #  next process                       18 ........ 27 ... x
    script, checkpoint, stop = (tmp_path / name for name in ("train.py", "checkpoint", "stop"))
    script.write_text(textwrap.dedent(_TRAINER))
    command = [sys.executable, str(script), lake.warehouse, str(checkpoint), str(stop)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])}
    dice, done = random.Random(), 0
    for kill in range(KILLS + 1):
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            if kill % 3:  # else while it opens
                assert process.stdout.readline() == "open\n"
            if kill < KILLS:
                time.sleep(dice.uniform(0, 0.4))
                process.send_signal(signal.SIGKILL)
            else:
                stop.touch()
                done = int(process.stdout.read().split()[-1])
        # what a checkpoint says was written is in the table, at every moment
        kept = json.loads(checkpoint.read_text())["step"] if checkpoint.exists() else 0
        if kept:
            assert set(range(kept)) <= {row["step"] for row in events(lake)}
    rows = [(row["seq"], row["step"], row["sample_id"]) for row in events(lake)]
    # a process that was killed may have come further than the last one
    steps = range(max(done, len(rows) // 2))
    assert rows == [(n + 1, n, sample) for n in steps for sample in (n, n + 10**6)]
    assert done >= 9


def test_what_is_left_open_is_committed_when_python_exits(lake: Lake) -> None:
    code = f"""
        from paimon_features.core.types.schema import Int64
        from paimon_features.lake.catalog import Lake
        from trainer_bridge.feedback.writer import FeedbackWriter
        lake = Lake.open({lake.warehouse!r}, "features")
        writer = FeedbackWriter(lake, "loop", {{"sample_id": Int64}}, "run", flush_interval_s=60)
        writer.write({{"sample_id": [1, 2]}}, [0.5, 0.5], 0)
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [row["sample_id"] for row in events(lake)] == [1, 2]


# --- when the table is slow or away ---


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Commits wait until this is set."""
    opened = threading.Event()
    real = feedback.append_arrow

    def slow(*arguments: Any, **options: Any) -> int:
        assert opened.wait(120)
        return real(*arguments, **options)

    monkeypatch.setattr(feedback, "append_arrow", slow)
    yield opened
    opened.set()


def test_write_waits_no_longer_than_declared_and_then_says_so(
    lake: Lake, gate: threading.Event
) -> None:
    writer = make(lake, max_pending=100, max_block_s=0.2)
    keys, losses = {"sample_id": np.arange(40)}, np.zeros(40)
    for step in range(2):
        writer.write(keys, losses, step)
    started = time.monotonic()
    with pytest.raises(TableError, match=r"no room for 40 more within max_block_s=0\.2"):
        writer.write(keys, losses, 2)
    assert time.monotonic() - started > 0.15
    assert writer.stats.written == 80
    with pytest.raises(TableError, match=r"80 events are not committed after 0\.1 s"):
        writer.flush(0.1)
    gate.set()
    writer.flush()
    writer.write({"sample_id": [7]}, [0.0], 9)
    writer.close()
    assert len(events(lake)) == 81


def test_bytes_that_wait_are_bounded_too(lake: Lake, gate: threading.Event) -> None:
    writer = FeedbackWriter(
        lake, "loop", {"name": String}, "run", max_pending_bytes=1_000_000, max_block_s=0.05
    )
    keys, losses = {"name": ["n" * 1_000] * 400}, np.zeros(400)
    for step in range(2):
        writer.write(keys, losses, step)
    with pytest.raises(
        TableError, match=r"800 events \(0 MiB\) are pending .* no room for 400 more"
    ):
        writer.write(keys, losses, 2)
    gate.set()
    writer.flush()
    writer.write({"name": ["n" * 10_000] * 400}, losses, 3)  # more than the bound waits alone
    writer.close()
    assert writer.stats.committed == 1_200


def test_events_are_dropped_and_counted_only_where_that_is_declared(
    lake: Lake, gate: threading.Event
) -> None:
    writer = make(lake, max_pending=100, max_block_s=0.05, on_full="drop")
    for step in range(4):
        writer.write({"sample_id": np.arange(40)}, np.zeros(40), step)
    assert (writer.stats.written, writer.stats.dropped) == (80, 80)
    gate.set()
    writer.close()
    assert {row["seq"] for row in events(lake)} == {1, 2}


def test_commits_that_fail_for_a_while_are_tried_again(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failures = feedback.append_arrow, iter([True, True, True])

    def shaky(*arguments: Any, **options: Any) -> int:
        fails = next(failures, False)
        # the first time it fails after the commit was made: the worst moment
        found = real(*arguments, **options)
        if fails:
            raise OSError("the disk is away")
        return found

    monkeypatch.setattr(feedback, "append_arrow", shaky)
    with make(lake) as writer:
        writer.write({"sample_id": [1, 2]}, [0.1, 0.2], 0)
    assert len(events(lake)) == 2
    assert writer.stats.retries == 3


def test_feedback_waits_while_the_table_is_maintained(lake: Lake) -> None:
    #  maintenance   owns the table, compacts --- ends
    #  writer             commit refused, again --- committed
    with make(lake, flush_rows=1) as writer:
        maintenance = acquire(lake, TABLE, ProcessHolder.of(os.getppid()), "maintain it")
        held.remove(str(lease_folder(lake, TABLE)), maintenance._fence.claim)  # of another process
        writer.write({"sample_id": [1, 2]}, [0.1, 0.2], 0)
        try:
            wait_for(lambda: writer.stats.retries > 1, "a second attempt")
            assert events(lake) == []
        finally:
            maintenance.release()
    assert len(events(lake)) == 2


def test_commits_that_go_on_failing_stop_the_training_with_the_reason(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any, **options: Any) -> int:
        raise OSError("the disk is away")

    monkeypatch.setattr(feedback, "append_arrow", broken)
    writer = make(lake, give_up_s=0.15)
    writer.write({"sample_id": [1]}, [0.1], 0)
    with pytest.raises(TableError, match=r"for 0\.15 s; 1 events are lost: the disk is away"):
        writer.flush()
    with pytest.raises(TableError, match="the disk is away"):
        writer.write({"sample_id": [1]}, [0.1], 1)
    with pytest.raises(TableError, match="the disk is away"):
        writer.close()


# --- forgetting ---


def naive_forgot(history: list[tuple[int, bool]]) -> list[bool]:
    """Wrong now, right when it came last."""
    last: dict[int, bool] = {}
    result = []
    for sample, right in history:
        result.append(last.get(sample, False) and not right)
        last[sample] = right
    return result


def test_a_large_memory_forgets_like_a_dictionary() -> None:
    rng = np.random.default_rng(4)
    memory, last = LastCorrect(), {}
    for size in rng.integers(1, 3_000, 60).tolist():
        samples = rng.integers(0, 20_000, size)
        right = rng.random(size) < 0.5
        forgot = memory.update(key_hashes([pa.array(samples)]), right)
        expected = []
        for sample, correct in zip(samples.tolist(), right.tolist(), strict=True):
            expected.append(last.get(sample, False) and not correct)
            last[sample] = correct
        assert forgot.tolist() == expected
    assert len(memory) == len(last)
    sizes = [len(hashes) for hashes, _ in memory._levels]
    assert all(longer >= 4 * shorter for longer, shorter in pairwise(sizes))


@given(st.lists(st.one_of(st.text(max_size=30), st.text("ab\0", max_size=20)), max_size=30))
def test_texts_have_one_hash_where_they_are_equal_wherever_they_stand(texts: list[str]) -> None:
    hashes = key_hashes([pa.array(texts, pa.string())]).tolist()
    assert len(set(hashes)) == len(set(texts))
    assert [hashes[texts.index(text)] for text in texts] == hashes
    shifted = pa.array(["x" * 9, *texts, "y"], pa.string()).slice(1, len(texts))
    assert key_hashes([shifted]).tolist() == hashes
    assert key_hashes([pa.array([t.encode() for t in texts], pa.binary())]).tolist() == hashes


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 12), st.booleans()), max_size=20), max_size=8),
    st.booleans(),
)
def test_the_memory_forgets_like_a_dictionary(
    calls: list[list[tuple[int, bool]]], merge: bool
) -> None:
    memory = LastCorrect()
    found: list[bool] = []
    for call in calls:
        hashes = key_hashes([pa.array([sample for sample, _ in call], pa.int64())])
        found += memory.update(hashes, np.array([right for _, right in call], bool)).tolist()
        if merge:
            assert len(memory) <= 13  # also moves what is recent into the sorted arrays
    assert found == naive_forgot([item for call in calls for item in call])


def test_key_hashes_tell_columns_values_and_types_of_text_apart() -> None:
    columns = [
        [pa.array([1, 2]), pa.array([2, 1])],
        [pa.array(["a", "b"])],
        [pa.array(["ab", ""]), pa.array(["", "ab"])],
    ]
    for keys in columns:
        one, other = key_hashes(keys)
        assert one != other
    many = key_hashes([pa.array(np.arange(200_000))])
    assert len(set(many.tolist())) == 200_000


def test_forgot_is_set_across_calls_restarts_and_ranks(lake: Lake) -> None:
    keys = {"user": String, "item": Int64}

    def writer(rank: int = 0) -> FeedbackWriter:
        clock = iter(range(1, 100))
        return FeedbackWriter(
            lake, "loop", keys, "run", rank=rank, clock_ms=lambda: start + next(clock)
        )

    def write(to: FeedbackWriter, right: list[bool | None]) -> None:
        to.write({"user": ["a", "a", "b"], "item": [1, 2, 1]}, [1.0] * 3, 0, pa.array(right))

    def forgotten() -> list[tuple[int, int, str, int]]:
        rows = read_arrow(lake, TABLE).to_pylist()
        names = ("rank", "seq", "user", "item")
        return sorted(tuple(row[n] for n in names) for row in rows if row["forgot"])

    start = 0
    with writer() as first:
        write(first, [True, False, True])
        write(first, [False, False, None])
        state = first.state_dict()
    assert forgotten() == [(0, 2, "a", 1)]
    start = 100
    with writer() as second:
        second.load_state_dict(state)
        write(second, [False, True, False])
    assert forgotten() == [(0, 2, "a", 1), (0, 3, "b", 1)]
    start = 1_000
    with writer(rank=1) as other:
        other.remember()
        write(other, [True, False, False])
    assert forgotten()[-1] == (1, 1, "a", 2)


@pytest.mark.parametrize(
    ("keys", "loss", "correct", "message"),
    [
        ({}, [1.0], None, "got the keys none; expected sample_id"),
        ({"sample_id": [1, 2]}, [1.0], None, "2 values of 'sample_id' for 1 losses"),
        ({"sample_id": [1]}, [1.0], [True, False], "2 values of 'correct' for 1 losses"),
        ({"sample_id": [None]}, [1.0], None, "key 'sample_id' has a null"),
        ({"sample_id": ["a"]}, [1.0], None, "'sample_id' is string, expected int64"),
        ({"sample_id": [2**63]}, [1.0], None, "'sample_id': expected int64: .*too large"),
        ({"sample_id": [1, "a"]}, [1.0], None, "'sample_id': expected int64: "),
        ({"sample_id": [1]}, 1.0, None, r"'loss' has the shape \(\); .*reduction='none'"),
        ({"sample_id": [1]}, np.ones((1, 1)), None, r"'loss' has the shape \(1, 1\)"),
    ],
)
def test_events_that_do_not_fit_are_refused_and_use_no_number(
    lake: Lake, keys: dict[str, Any], loss: Any, correct: Any, message: str
) -> None:
    with make(lake) as writer:
        with pytest.raises(RequestError, match=message):
            writer.write(keys, loss, 0, correct)
        assert writer.write({"sample_id": [1]}, [1.0], 0) == 1


def test_a_call_that_no_column_can_hold_is_refused_and_costs_no_other_call(lake: Lake) -> None:
    with make(lake) as writer:
        writer.write({"sample_id": [1]}, [1.0], np.int32(1))
        for wrong in (2**63, -(2**63) - 1, 0.5, "x", None, float("nan")):
            with pytest.raises(RequestError, match="step=.*; expected a 64-bit integer"):
                writer.write({"sample_id": [1]}, [1.0], wrong)  # type: ignore[arg-type]
        with pytest.raises(RequestError, match="event_time_ms=1.5; expected a 64-bit integer"):
            writer.write({"sample_id": [1]}, [1.0], 2, event_time_ms=1.5)  # type: ignore[arg-type]
        with pytest.raises(RequestError, match="seq=9223372036854775808; expected"):
            writer.write({"sample_id": [1]}, [1.0], 2, seq=2**63)
        writer.model_version = 7  # type: ignore[assignment]
        with pytest.raises(RequestError, match="model_version=7; expected a string"):
            writer.write({"sample_id": [1]}, [1.0], 2)
        writer.model_version = "7"
        assert writer.write({"sample_id": [1]}, [1.0], 2.0) == 2  # type: ignore[arg-type]
    assert writer.stats.committed == 2


@pytest.mark.long
def test_a_disk_that_is_full_for_a_while_loses_and_doubles_nothing(tmp_path: Path) -> None:
    # a process of its own: no file of it may grow beyond the limit, which is what it meets then
    script = """
    import resource, signal, sys, time
    import numpy as np
    from paimon_features.core.types.schema import Int64
    from paimon_features.lake import Lake, read_arrow
    from trainer_bridge import FeedbackWriter

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    lake = Lake.open(sys.argv[1], "shop")
    with FeedbackWriter(lake, "loop", {"sample_id": Int64}, "r", flush_interval_s=0.01) as writer:
        writer.write({"sample_id": np.arange(5)}, np.ones(5), 0)
        writer.flush()
        for limit in (0, 100, 3_000):  # no file, no manifest, no data file
            before = writer.stats.retries
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, -1))
            start = writer.seq * 5_000
            writer.write({"sample_id": start + np.arange(5_000)}, np.random.rand(5_000), 1)
            while writer.stats.retries == before:
                time.sleep(0.01)
            resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
            writer.flush()
    rows = read_arrow(lake, "feedback_loop")
    assert rows.num_rows == len(set(rows["sample_id"].to_pylist())) == 15_005
    """
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])},
        check=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    "options",
    [
        {"run_id": ""},
        {"rank": -1},
        {"rank": 2**31},
        {"on_full": "wait"},
        {"flush_rows": 0},
        {"max_pending_bytes": 0},
        {"give_up_s": -1.0},
        {"max_block_s": -1.0},
        {"sample_keys": {}},
    ],
)
def test_settings_out_of_bounds_are_refused(lake: Lake, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        FeedbackWriter(lake, "loop", **{"sample_keys": KEYS, "run_id": "run", **options})
