"""Feedback of several hosts: through a queue that loses and doubles, each call once."""

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
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.errors import (
    ConfigurationError,
    OnlineStoreError,
    RequestError,
    TableError,
)
from paimon_features.core.types.schema import Int64
from paimon_features.definitions import FeedbackSource
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata.snapshots import snapshots
from paimon_features.lake.reading.table_reader import read_arrow
from paimon_features.online.store.queue import BEGINNING, MemoryQueue
from paimon_features.testing.servers.redis_server import RedisServer
from tests.chaos import CHAOS
from tests.waiting import LONG_S, await_true
from trainer_bridge.feedback import feedback_drain
from trainer_bridge.feedback.feedback_drain import FeedbackDrain, HandOver, Message, messages_of
from trainer_bridge.feedback.writer import FeedbackWriter

KEYS = {"sample_id": Int64}
TABLE = "feedback_loop"


def make(lake: Lake, queue: Any, **options: Any) -> FeedbackWriter:
    given = {"run_id": "run", "clock_ms": lambda: 5, "flush_interval_s": 0.01, **options}
    writer = FeedbackWriter(lake, "loop", KEYS, through=queue, **given)
    writer._way._patience_s = LONG_S  # type: ignore[union-attr]
    return writer


def drain(lake: Lake, queue: Any, **options: Any) -> FeedbackDrain:
    return FeedbackDrain(lake, "loop", KEYS, queue=queue, **{"interval_s": 0.02, **options})


def calls(lake: Lake) -> list[tuple[int, int, int]]:
    rows = read_arrow(lake, TABLE).to_pylist() if lake.exists(TABLE) else []
    return sorted((row["rank"], row["seq"], row["sample_id"]) for row in rows)


def expected(ranks: int, seqs: int) -> list[tuple[int, int, int]]:
    """Two samples in each call."""
    return [(r, s, 100 * s + i) for r in range(ranks) for s in range(1, seqs + 1) for i in (0, 1)]


def write(writer: FeedbackWriter, seqs: range) -> None:
    for seq in seqs:
        writer.write({"sample_id": [100 * seq, 100 * seq + 1]}, [0.5, 1.5], seq)


def test_ranks_hand_over_and_one_drain_commits(lake: Lake) -> None:
    queue = MemoryQueue()
    with drain(lake, queue) as drained:
        writers = [make(lake, queue, rank=rank) for rank in range(4)]
        for writer in writers:
            write(writer, range(1, 11))
        states = [writer.state_dict() for writer in writers]
        # what a state says was written is in the table
        assert calls(lake) == expected(4, 10)
        for writer in writers:
            writer.close()
    assert drained.rows == 80
    assert queue.read(BEGINNING, 9) == []
    assert {s.commit_user for s in snapshots(lake, TABLE)} == {"feedback-drain"}
    assert [state["committed"] for state in states] == [10] * 4
    assert {state["way"] for state in states} == {"queue"}
    with make(lake, MemoryQueue()) as alone, pytest.raises(RequestError, match="'table'"):
        alone.load_state_dict({**states[0], "way": "table"})


def test_a_drain_of_a_source_gives_up_on_a_queue_that_stays_away(lake: Lake) -> None:
    class Away(MemoryQueue):
        def read(self, *arguments: Any, **options: Any) -> Any:
            raise OnlineStoreError("the queue does not answer")

    source = FeedbackSource("loop", sample_keys=KEYS)
    drained = FeedbackDrain(lake, source, queue=Away(), give_up_s=-1)
    assert drained.table == TABLE
    with pytest.raises(OnlineStoreError, match="the queue does not answer"), drained:
        drained._thread.join()
    with pytest.raises(ConfigurationError, match="'feedback_loop': give sample_keys"):
        FeedbackDrain(lake, "loop", queue=MemoryQueue())


def test_the_positions_of_writers_are_read_from_the_table_where_their_record_was_lost(
    lake: Lake,
) -> None:
    #  drain   calls 1, 2 -------- starts without the record; calls 2 and 3 come (again)
    queue = MemoryQueue()
    with drain(lake, queue), make(lake, queue) as writer:
        write(writer, range(1, 3))
        again = writer.state_dict()
    (lake.side_folder / "feedback" / f"features.{TABLE}.drain.json").unlink()
    with drain(lake, queue), make(lake, queue) as writer:
        writer.load_state_dict({**again, "seq": 1})
        write(writer, range(2, 4))
    assert calls(lake) == expected(1, 3)


class HostileQueue(MemoryQueue):
    """Loses messages, doubles them, forgets its notes, is away; all of it at random."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.dice = random.Random(seed)
        self.peaceful = False

    def _mischief(self, share: float) -> bool:
        return not self.peaceful and self.dice.random() < share

    def append(self, messages: Sequence[bytes]) -> list[bytes]:
        if self._mischief(0.1):
            raise OnlineStoreError("away before it was done")
        ids = []
        for message in messages:
            if self._mischief(0.1):
                super().append([message])
            ids += super().append([message])
            if self._mischief(0.15):  # a server that restarts loses what it has, or some of it
                super().delete([i for i in ids if self.dice.random() < 0.7])
        if self._mischief(0.1):
            raise OnlineStoreError("away after it was done")
        return ids

    def read(self, after: bytes, most: int) -> list[tuple[bytes, bytes]]:
        if self._mischief(0.1):
            raise OnlineStoreError("away")
        return super().read(after, most)

    def note(self, notes: Any) -> None:
        if self._mischief(0.1):
            raise OnlineStoreError("away")
        super().note(notes)
        if self._mischief(0.05):
            self.forget_notes()


@pytest.mark.parametrize("seed", range(3 if CHAOS else 1))
def test_whatever_the_queue_does_each_call_is_in_the_table_once(
    lake: Lake, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    #  rank 0   1 2 3 4 5 6 ... 25 state  .. 40 x      31 .. 60
    #  rank 1                                 the writer dies, and resumes after call 25
    #  drain    ---- x ----- x ------ x --------   dies between any two of its steps
    monkeypatch.setattr(feedback_drain, "_MESSAGE_BYTES", 300)  # a few calls each
    queue, dice = HostileQueue(seed), random.Random(seed)
    real = feedback_drain.append_arrow

    def shaky(*arguments: Any, **options: Any) -> int:
        fails, after = dice.random() < 0.1 and not queue.peaceful, dice.random() < 0.5
        if fails and not after:
            raise OSError("the disk is away")
        found = real(*arguments, **options)
        if fails:
            raise OSError("the disk is away after it was done")
        return found

    monkeypatch.setattr(feedback_drain, "append_arrow", shaky)

    def train(rank: int) -> None:
        with make(lake, queue, rank=rank) as writer:
            write(writer, range(1, 26))
            state = writer.state_dict()
            assert {s for r, s, _ in calls(lake) if r == rank} == set(range(1, 26))
            write(writer, range(26, 41))
        with make(lake, queue, rank=rank) as writer:
            writer.load_state_dict(state)
            write(writer, range(26, 61))

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        one = drain(lake, queue)
        with one:
            time.sleep(dice.uniform(0.05, 0.4))
            # as if killed: at once, wherever it stands between two steps
            one._stop.set()
            monkeypatch.setattr(one, "_drain", lambda: 0)
    queue.peaceful = True
    with drain(lake, queue):
        pass
    assert calls(lake) == expected(3, 60)


_DRAIN = """
    import sys, time
    from paimon_features.online.store import open_queue
    from paimon_features.core.types.schema import Int64
    from paimon_features.lake.catalog import Lake
    from trainer_bridge import FeedbackDrain

    lake, queue = Lake.open(sys.argv[1], "features"), open_queue(sys.argv[2], "loop")
    with FeedbackDrain(lake, "loop", {"sample_id": Int64}, queue=queue, interval_s=0.01):
        print("open", flush=True)
        time.sleep(600)
"""
_TRAINER = """
    import json, os, sys, time
    from pathlib import Path
    from paimon_features.online.store import open_queue
    from paimon_features.core.types.schema import Int64
    from paimon_features.lake.catalog import Lake
    from trainer_bridge import FeedbackWriter

    rank, stop, checkpoint = int(sys.argv[3]), Path(sys.argv[4]), Path(sys.argv[5])
    writer = FeedbackWriter(Lake.open(sys.argv[1], "features"), "loop", {"sample_id": Int64},
                            "run", rank=rank, flush_interval_s=0.01, max_block_s=60,
                            through=open_queue(sys.argv[2], "loop"))
    writer._way._patience_s = 120.0
    seq = 0
    if checkpoint.exists():
        state = json.loads(checkpoint.read_text())
        writer.load_state_dict(state)
        seq = state["seq"]
    print("open", flush=True)
    while not stop.exists():
        seq += 1
        writer.write({"sample_id": [100 * seq, 100 * seq + 1]}, [0.5, 1.5], seq)
        time.sleep(0.005)
        if seq % 20 == 0:
            checkpoint.with_suffix(".new").write_text(json.dumps(writer.state_dict()))
            os.replace(checkpoint.with_suffix(".new"), checkpoint)
    writer.close()
    print(seq, flush=True)
"""
KILLS = int(os.environ.get("PAIMON_FEATURES_KILLS", "1"))


@pytest.mark.long
@pytest.mark.redis
@pytest.mark.timeout(120 + 20 * KILLS)
def test_drain_trainers_and_server_killed_at_random_lose_and_double_nothing(
    lake: Lake, tmp_path: Path
) -> None:
    dice = random.Random()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])}
    stop = tmp_path / "stop"
    checkpoints = [tmp_path / f"checkpoint-{rank}" for rank in range(2)]

    def start(name: str) -> subprocess.Popen[str]:
        script = textwrap.dedent(_DRAIN if name == "drain" else _TRAINER)
        more = [] if name == "drain" else [name, str(stop), str(checkpoints[int(name)])]
        command = [sys.executable, "-c", script, lake.warehouse, server.url, *more]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    def opened(process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"

    with RedisServer() as server:
        running = {name: start(name) for name in ("drain", "0", "1")}
        try:
            for process in running.values():
                opened(process)
            anything = dice.choices(["server", "0", "1", "drain"], k=KILLS)
            for victim in ["server", "drain", "0", *anything][:KILLS]:
                time.sleep(dice.uniform(0.1, 0.6))
                if victim == "server":
                    server.restart()  # with an empty memory
                    continue
                running[victim].send_signal(signal.SIGKILL)
                running[victim].communicate()
                running[victim] = start(victim)
                opened(running[victim])
            time.sleep(0.5)
            stop.touch()
            ends = []
            for name in ("0", "1"):
                output, _ = running[name].communicate(timeout=300)
                ends.append(int(output.split()[-1]))
                assert running[name].returncode == 0
        finally:
            for process in running.values():
                process.kill()
                process.communicate()
    # a trainer that was killed may have come further than the one after it
    found = calls(lake)
    for rank in range(2):
        own = [call for call in found if call[0] == rank]
        last = max(ends[rank], len(own) // 2)
        assert own == [(rank, s, 100 * s + i) for s in range(1, last + 1) for i in (0, 1)]
        assert json.loads(checkpoints[rank].read_text())["committed"] <= last


def test_without_a_drain_a_writer_waits_as_declared_and_says_what_is_missing(lake: Lake) -> None:
    was_full = threading.Event()

    class Waiting(MemoryQueue):
        def append(self, messages: Sequence[bytes]) -> list[bytes]:
            # so that the writer cannot give up before it was seen that there is no room
            assert was_full.wait(LONG_S)
            return super().append(messages)

    # nothing is handed over before there is no room
    waits = {"max_block_s": 0, "give_up_s": 0.3, "flush_interval_s": 600}
    writer = make(lake, Waiting(), max_pending=4, **waits)
    writer._way._patience_s = 0.1  # type: ignore[union-attr]
    write(writer, range(1, 3))
    with pytest.raises(TableError, match="no room for 2 more within max_block_s"):
        write(writer, range(3, 4))
    was_full.set()
    with pytest.raises(TableError, match="is a FeedbackDrain of this queue running"):
        writer.flush()
    with pytest.raises(TableError, match="4 events are lost"):
        writer.close()


def test_a_state_waits_for_the_drain_and_refuses_a_table_that_lost_calls(lake: Lake) -> None:
    queue = MemoryQueue()
    with drain(lake, queue), make(lake, queue) as writer:
        write(writer, range(1, 6))
        state = writer.state_dict()
    queue = MemoryQueue()  # another server: nothing is noted there until the drain looks
    with make(lake, queue) as writer:
        assert writer.committed == 0
        with drain(lake, queue):
            writer.load_state_dict(state)
            assert (writer.seq, writer.committed) == (5, 5)
            write(writer, range(6, 8))
            writer.flush()
    assert calls(lake) == expected(1, 7)
    # notes of a table that is gone are not believed, and without any nobody knows
    lake.drop(TABLE)
    with make(lake, queue) as writer:
        assert queue.noted("run-0") is None
        writer._way._patience_s = 0.1  # type: ignore[union-attr]
        with pytest.raises(TableError, match="is a FeedbackDrain of this queue running"):
            writer.load_state_dict(state)
    with drain(lake, queue), make(lake, queue) as writer:
        await_true(lambda: queue.noted("#commits") is not None)  # it has looked at the table
        writer._way._patience_s = 0.1  # type: ignore[union-attr]
        with pytest.raises(TableError, match="up to call 0, .* rolled back or recreated"):
            writer.load_state_dict(state)
        write(writer, range(1, 3))
    assert calls(lake) == expected(1, 2)


def test_a_resumed_writer_whose_drain_is_away_is_not_told_that_the_table_lost_calls(
    lake: Lake,
) -> None:
    #  drain    calls 1 .. 5 --x                  -------- calls 6, 7
    #  writer   ------- state       asks in vain    asks again, and goes on
    queue = MemoryQueue()
    with drain(lake, queue), make(lake, queue) as writer:
        write(writer, range(1, 6))
        state = writer.state_dict()
    queue.forget_notes()  # its server was restarted
    with make(lake, queue) as writer:
        writer._way._patience_s = 0.1  # type: ignore[union-attr]
        absent = r"call 5 of 'run-0' is in the table .* is a FeedbackDrain of this queue running\?"
        with pytest.raises(TableError, match=absent) as caught:
            writer.load_state_dict(state)
        assert "rolled back" not in str(caught.value)
        writer._way._patience_s = LONG_S  # type: ignore[union-attr]
        with drain(lake, queue):
            writer.load_state_dict(state)
            write(writer, range(6, 8))
            writer.flush()
    assert calls(lake) == expected(1, 7)


def test_a_table_that_loses_calls_beneath_a_run_stops_it(lake: Lake) -> None:
    queue = MemoryQueue()
    writer = make(lake, queue)
    with drain(lake, queue):
        write(writer, range(1, 6))
        writer.flush()
    writer.buffering = replace(writer.buffering, give_up_s=0.5)
    lake.drop(TABLE)
    # the second call may meet the error as well as the end
    lost = pytest.raises(TableError, match="rolled back or recreated")
    with drain(lake, queue), lost, writer:
        write(writer, range(6, 8))
    assert calls(lake) == []


def test_one_drain_at_a_time_and_its_errors_are_reported(lake: Lake) -> None:
    queue = MemoryQueue()
    another = pytest.raises(TableError, match="feedback drain of 'feedback_loop': another")
    with drain(lake, queue), another, drain(lake, queue):
        pass
    queue.append([b"something else"])
    strange = pytest.raises(
        ConfigurationError, match="message 1-0 was not written by a feedback writer"
    )
    with strange, drain(lake, queue):
        pass
    never = drain(lake, queue)
    never.close()  # harmless: it was not begun
    once = drain(lake, MemoryQueue())
    with once:
        pass
    once.close()
    with pytest.raises(TableError, match="was used before; create a new one"), once:
        pass
    with drain(lake, MemoryQueue()):  # and the refused one holds no lock
        pass
    with pytest.raises(ConfigurationError, match="give sample_keys"):
        FeedbackDrain(lake, "loop", queue=queue)


def test_messages_hold_whole_calls_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    dice = np.random.default_rng(1)
    for limit in (1, 200, 1_000, 1 << 20):
        monkeypatch.setattr(feedback_drain, "_MESSAGE_BYTES", limit)
        calls = np.repeat(np.arange(5, 35), dice.integers(0, 9, 30))
        rows = pa.table({"seq": calls, "value": np.arange(len(calls))})
        messages = [Message.decoded(text) for text in messages_of(rows, "run-0", 3)]
        assert pa.concat_tables([m.rows for m in messages]).equals(rows)
        assert messages[0].previous == 3
        for before, after in pairwise(messages):
            assert after.previous == before.last
        for message in messages:
            seqs = message.rows.column("seq").to_pylist()
            assert min(seqs) > message.previous
            assert max(seqs) == message.last
        assert limit > 1 or len(messages) == len(set(calls.tolist()))


def test_a_commit_is_handed_over_again_only_when_it_is_gone(lake: Lake) -> None:
    queue = MemoryQueue()
    rows = pa.table({"seq": [1, 2]})
    over = HandOver(lake, TABLE, queue, "run-0", patience_s=0.05)
    for _ in range(3):
        with pytest.raises(TableError, match="call 2 of 'run-0' was sent"):
            over.commit(rows, 0, 2)
    ((number, text),) = queue.read(BEGINNING, 9)
    queue.delete([number])
    with pytest.raises(TableError):
        over.commit(rows, 0, 2)
    assert [message for _, message in queue.read(BEGINNING, 9)] == [text]
    queue.note({"run-0": 2})
    over.commit(rows, 0, 2)
