"""Both wires obey one contract; the one through Redis notices every loss."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paimon_features.core.documents.signed_pickle import Seal
from paimon_features.core.errors import ConfigurationError, JobError
from paimon_features.iteration.wires import ENTRY, ROUND_CLOSED, Notice
from paimon_features.iteration.wires.redis import INLINE_BYTES
from paimon_features.iteration.wires.spec import WireSpec
from paimon_features.testing.servers.resp import connect


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.redis)])
def wires(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[WireSpec]:
    url = request.getfixturevalue("redis_url") if request.param == "redis" else None
    spec = WireSpec("test", url, tmp_path)
    yield spec
    spec.discard(0)


def entry(seq: int, size: int = 3, node: int = 1) -> Notice:
    return Notice(ENTRY, node, 0, 5, seq, 1, bytes(size))


def payloads(wire: Any, generation: int, notices: list[Notice]) -> list[int]:
    return [
        len(wire.take(generation, notice) if notice.payload is None else notice.payload)
        for notice in notices
    ]


def test_notices_arrive_once_and_in_order_with_their_payloads(wires: WireSpec) -> None:
    head, tail = wires.open(0), wires.open(0)
    generation = head.begin()
    sizes = [1, INLINE_BYTES, INLINE_BYTES + 1, 100_000, 0]
    for seq, size in enumerate(sizes):
        tail.publish(generation, [entry(seq, size), Notice(ROUND_CLOSED, 1, 0, seq)])
    found = head.poll(50)
    assert [notice.seq for notice in found if notice.kind == ENTRY] == list(range(len(sizes)))
    entries = [notice for notice in found if notice.kind == ENTRY]
    assert payloads(head, generation, entries) == sizes
    assert head.poll(0) == []
    assert head.poll(1) == []


def test_what_a_dead_attempt_publishes_is_never_read(wires: WireSpec) -> None:
    head, tail, zombie = wires.open(0), wires.open(0), wires.open(0)
    old = head.begin()
    zombie.publish(old, [entry(1)])
    new = wires.open(0).begin()
    assert new > old
    head = wires.open(0)
    new = head.begin()
    zombie.publish(old, [entry(2)])
    tail.publish(new, [entry(3)])
    zombie.publish(old, [entry(4)])
    assert [notice.seq for notice in head.poll(50)] == [3]


def test_a_poll_waits_for_its_timeout(wires: WireSpec) -> None:
    head = wires.open(0)
    head.begin()
    began = time.monotonic()
    assert head.poll(80) == []
    assert time.monotonic() - began >= 0.07


def test_iterations_of_one_program_do_not_mix(wires: WireSpec) -> None:
    one, other = wires.open(0), wires.open(1)
    generations = one.begin(), other.begin()
    wires.open(0).publish(generations[0], [entry(1)])
    wires.open(1).publish(generations[1], [entry(2)])
    assert [notice.seq for notice in one.poll(50)] == [1]
    assert [notice.seq for notice in other.poll(50)] == [2]
    wires.discard(1)


def test_who_watches_sees_what_was_reported_last(wires: WireSpec) -> None:
    assert wires.status(0) == {}
    head = wires.open(0)
    head.report({"epoch": 3, "loss": 0.5})
    head.report({"epoch": 4, "loss": 0.25})
    assert wires.status(0) == {"epoch": 4, "loss": 0.25}
    wires.discard(0)
    assert wires.status(0) == {}


@pytest.mark.redis
def test_a_server_that_was_emptied_fails_the_attempt_and_serves_the_next(redis_url: str) -> None:
    spec = WireSpec("test", redis_url)
    head, tail = spec.open(0), spec.open(0)
    generation = head.begin()
    tail.publish(generation, [entry(1)])
    with connect(redis_url) as connection:
        connection.request("FLUSHALL")
    tail.publish(generation, [entry(2)])
    with pytest.raises(JobError, match="lost its data"):
        head.poll(20)
    head = spec.open(0)
    assert head.begin() > generation, "also if the server's counter restarted"
    tail.publish(generation, [entry(3)])
    assert head.poll(20) == []


@pytest.mark.redis
def test_a_gap_and_a_lost_payload_fail_the_attempt(redis_url: str) -> None:
    spec = WireSpec("test", redis_url)
    head, tail = spec.open(0), spec.open(0)
    generation = head.begin()
    tail.publish(generation, [entry(1)])
    with connect(redis_url) as connection:
        connection.request("DEL", f"iteration:{{test-0}}:{generation}:notices")
    tail.publish(generation, [entry(2)])
    with pytest.raises(JobError, match="lost 1 messages"):
        head.poll(20)
    with pytest.raises(JobError, match="lost the records 7"):
        head.take(generation, entry(7, INLINE_BYTES + 1))


def test_the_head_of_an_older_attempt_notices_the_newer_one(wires: WireSpec) -> None:
    old = wires.open(0)
    old.begin()
    wires.open(0).begin()
    with pytest.raises(JobError, match="newer attempt"):
        old.poll(1)


@pytest.mark.redis
def test_consumed_notices_and_ended_iterations_leave_nothing_behind(redis_url: str) -> None:
    spec = WireSpec("test", redis_url)
    head, tail = spec.open(0), spec.open(0)
    generation = head.begin()
    with connect(redis_url) as connection:
        for seq in range(200):
            tail.publish(generation, [entry(seq, INLINE_BYTES + 1)])
            assert payloads(head, generation, head.poll(50)) == [INLINE_BYTES + 1]
        assert connection.request("XLEN", f"iteration:{{test-0}}:{generation}:notices") <= 2
        head.report({"epoch": 1})
        spec.discard(0)
        assert connection.request("KEYS", "*") == []


@pytest.mark.redis
def test_a_payload_is_deleted_when_its_last_reader_has_taken_it(redis_url: str) -> None:
    spec = WireSpec("test", redis_url)
    heads, tail = [spec.open(0), spec.open(0), spec.open(0)], spec.open(0)
    generation = heads[0].begin()
    tail.publish(generation, [entry(1, INLINE_BYTES + 1), entry(2, INLINE_BYTES + 1)])
    one, other = heads[0].poll(50)
    assert one.payload is None
    for head in heads:
        assert len(head.take(generation, one, readers=3)) == INLINE_BYTES + 1
    with pytest.raises(JobError, match="lost the records 1"):
        heads[0].take(generation, one, readers=3)
    assert len(heads[0].take(generation, other)) == INLINE_BYTES + 1
    spec.discard(0)


class _Runs:
    """A pickle of it would create a file where it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (open, (str(self.path), "w"))


@pytest.mark.redis
def test_what_others_write_into_the_server_is_not_unpickled(redis_url: str, tmp_path: Path) -> None:
    """Foreign pickles, with and without a seal, and own messages moved to another place."""
    redis = pytest.importorskip("redis")
    spec = WireSpec("test", redis_url)
    ran = tmp_path / "ran"
    code = pickle.dumps(_Runs(ran))
    tail = spec.open(0)
    with redis.Redis.from_url(redis_url) as connection:

        def streams(generation: int) -> list[str]:
            return [f"iteration:{{test-0}}:{generation}:{kind}" for kind in ("notices", "payloads")]

        for forged in (code, b"", Seal.random().close(b"", code), spec.seal.close(b"", code)):
            head = spec.open(0)
            stream, payload_key = streams(head.begin())
            connection.xadd(stream, {"d": forged})
            with pytest.raises(JobError, match="not written with the key of this job"):
                head.poll(20)
            connection.hset(payload_key, "1:0:7", forged)
            with pytest.raises(JobError, match="not written with the key of this job"):
                head.take(head._generation, entry(7)._replace(payload=None))
        head = spec.open(0)
        before = head.begin()
        tail.publish(before, [entry(1)])
        ((_, message),) = connection.xrange(streams(before)[0])
        head = spec.open(0)
        connection.xadd(streams(head.begin())[0], message)
        with pytest.raises(JobError, match="not written with the key of this job"):
            head.poll(20)
    assert not ran.exists()
    assert "seal=Seal(...)" in repr(spec)


@pytest.mark.redis
def test_keys_that_another_program_has_written_are_named(redis_url: str) -> None:
    redis = pytest.importorskip("redis")
    spec = WireSpec("test", redis_url)
    head = spec.open(0)
    head.begin()
    with redis.Redis.from_url(redis_url) as connection:
        [generation] = connection.keys("*generation")
        for wrong in ("abc", "-1", "9" * 5_000, ""):
            connection.set(generation, wrong)
            for use in (lambda: head.poll(0), head.discard):
                with pytest.raises(JobError, match="another program writes its keys"):
                    use()
        with pytest.raises(JobError, match="Redis wire"):
            head.begin()
        connection.delete(generation)
        head.begin()
        head.report({"epoch": 1})
        for wrong in ("no JSON", "[" * 200_000, b"\xff"):
            connection.hset(generation.replace(b"generation", b"status"), "epoch", wrong)
            with pytest.raises(JobError, match="another program writes its keys"):
                head.status()
    spec.discard(0)


def test_a_wire_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="memory.*redis://"):
        WireSpec("run", "kafka://broker:9092")


@pytest.mark.redis
def test_an_unreachable_server_is_named_without_its_password() -> None:
    wire = WireSpec("run", "redis://me:secret@127.0.0.1:1/0").open(0)
    with pytest.raises(JobError, match=r"redis://127.0.0.1:1/0") as caught:
        wire.begin()
    assert "secret" not in str(caught.value)
