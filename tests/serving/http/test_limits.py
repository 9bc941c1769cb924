"""Limits of one request, and what happens when there are too many."""

from __future__ import annotations

import asyncio
import json
import threading
import tracemalloc
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from paimon_features.core.errors import OnlineStoreError
from paimon_features.online.store import MemoryStore
from paimon_features.serving.http.access.admission import Admission
from paimon_features.serving.http.endpoints import feature_reads
from paimon_features.serving.http.http_errors import STORE_UNAVAILABLE, RequestRejected
from paimon_features.serving.http.messages import Request
from tests.serving.http.conftest import Sent

READ = {"feature_service": "reading_v1", "entities": {"user": [1]}}


def users(count: int) -> dict[str, Any]:
    return {"feature_service": "reading_v1", "entities": {"user": list(range(count))}}


def test_a_request_over_a_limit_is_refused_with_the_setting_that_says_so(make_client: Any) -> None:
    client = make_client(max_entities=10, max_features=5, max_values=20, max_body_bytes=1_000)
    assert client.read(users(5)).status == 200
    many = [f"clicks:f{i}" for i in range(6)]
    for request, setting in (
        (users(11), "max_entities"),
        (users(6), "max_values"),
        ({"features": many, "entities": {"user": [1]}}, "max_features"),
        (users(500), "max_body_bytes"),
    ):
        status, code, detail = client.read(request).problem
        assert (status, code) == (413, "too_large")
        assert setting in detail


def test_a_million_entities_are_refused(client: Any) -> None:
    assert client.read(users(1_000_000)).problem[:2] == (413, "too_large")


def test_a_body_that_says_that_it_is_too_long_is_not_read(make_client: Any) -> None:
    client = make_client(max_body_bytes=100)
    answer = client.read(b"x" * 10, headers={"content-length": "101"})
    assert answer.problem[:2] == (413, "too_large")
    assert answer.headers["connection"] == "close"
    # and one that does not say so is left off where it goes over
    lying = client.read(b"x" * 5_000, headers={"content-length": "10"}, parts=50)
    assert lying.problem[:2] == (413, "too_large")


def test_a_client_that_goes_within_its_body_gets_no_reply_and_a_line(client: Any) -> None:
    async def gone() -> int:
        request = Request("POST", "/get-online-features", b"", "1.0", [])
        sent = Sent(request, [b"{"], goes=True)
        client.app.start(sent)
        return (await sent.replied)[0]

    assert client.run(gone()) == 499
    assert client.log[-1]["status"] == 499


def test_refused_bodies_leave_nothing_behind(client: Any) -> None:
    bodies = [
        b"[" * 50_000,
        b'{"x":' + b"[" * 50_000,
        b'{"entities":{"user":[%s]}}' % (b"1," * 9_999),
    ]

    def some(count: int) -> int:
        for i in range(count):
            names = [f"a{i}:b{j}" for j in range(50)]
            assert client.read({"features": names, "entities": {"user": [1]}}).status == 404
            assert client.read(bodies[i % 3]).status < 500
            assert client.get(f"/nowhere/{i}").status == 404
        client.app.log.flush()
        client._log.truncate(0)
        client._log.seek(0)
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        some(300)
        before = some(50)
        assert some(300) - before < 200_000
    finally:
        tracemalloc.stop()


# -- more than can be answered ---------------------------------------------------------------


class SlowStore:
    """A store whose reads wait until they are let go."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.go = threading.Event()

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        assert self.go.wait(120)
        return self._store.get_many(keys)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_over_the_bound_requests_are_refused_at_once_and_the_others_answered(
    make_client: Any, filled: Any
) -> None:
    store = SlowStore(filled.store)
    client = make_client(store=store, max_concurrent=3)

    async def burst() -> tuple[list[Any], list[Any]]:
        body = json.dumps(READ).encode()
        tasks = [
            asyncio.ensure_future(client.send("POST", "/get-online-features", body))
            for _ in range(8)
        ]
        await asyncio.sleep(0.05)
        done = [task.result() for task in tasks if task.done()]
        store.go.set()
        await asyncio.gather(*tasks)
        return done, [task.result() for task in tasks]

    refused, answers = client.run(burst())
    assert len(refused) == 5
    for answer in refused:
        assert answer.problem[:2] == (503, "overloaded")
        assert answer.headers["retry-after"] == "1"
    assert sorted(answer.status for answer in answers) == [200] * 3 + [503] * 5
    assert client.app.state.admission.in_flight == 0
    assert client.read(READ).status == 200


def test_the_wait_is_distinguished_from_the_work_that_got_done() -> None:
    admission = Admission(max_concurrent=100, max_wait_ms=55)
    now = 0.0
    for _ in range(200):  # one after the other, 10 ms each
        work = admission.enter(0, now)
        now += 0.010
        admission.leave(work, now)
    taken = [admission.enter(0, now) for _ in range(6)]
    with pytest.raises(RequestRejected, match="would wait for 60 ms"):
        admission.enter(0, now)
    for work in taken:
        now += 0.001  # faster from now on
        admission.leave(work, now)
    for _ in range(2_000):
        work = admission.enter(0, now)
        now += 0.001
        admission.leave(work, now)
    taken = [admission.enter(0, now) for _ in range(30)]
    assert admission.wait_s == pytest.approx(0.030, rel=0.4)


def test_a_large_body_counts_as_much_work() -> None:
    admission = Admission(max_concurrent=100, max_wait_ms=50)
    for now in (0.0, 0.001):
        work = admission.enter(0, now)
        admission.leave(work, now + 0.001)
    admission.enter(100 * 2_048, 0.002)
    with pytest.raises(RequestRejected, match="would wait for 101 ms"):
        admission.enter(0, 0.002)


def test_the_first_answer_of_a_read_is_not_the_speed_of_all() -> None:
    admission = Admission(max_concurrent=100, max_wait_ms=200)
    taken = [admission.enter(0, 0.0) for _ in range(64)]
    admission.leave(taken.pop(), 0.015)  # a new worker's first read; 63 times as long is 945 ms
    taken.append(admission.enter(0, 0.0151))
    for number in range(64):
        admission.leave(taken.pop(), 0.0152 + number * 0.0001)


def served_in_turn(
    read_s: list[float], clients: int, reply_s: float, max_wait_ms: int
) -> tuple[int, int]:
    """Closed-loop clients of one worker: of their requests, those accepted and those refused.

    A read of the store answers all that arrived before it began, a reply after the other; each
    client sends its next request as soon as it has a reply, or half a second after a refusal.
    """
    admission = Admission(max_concurrent=clients, max_wait_ms=max_wait_ms)
    now, accepted, refused = 0.0, 0, 0
    waiting, again = [], [0.0] * clients

    def arrive() -> None:
        nonlocal accepted, refused
        for due in [due for due in again if due <= now]:
            again.remove(due)
            try:
                waiting.append(admission.enter(0, now))
                accepted += 1
            except RequestRejected:
                again.append(now + 0.5)
                refused += 1

    for took_s in read_s:
        now = max(now, min(again)) if not waiting else now
        arrive()
        reading, waiting = waiting, []
        now += took_s
        for work in reading:
            now += reply_s
            admission.leave(work, now)
            again.append(now)
            arrive()
    return accepted, refused


def test_no_request_is_refused_that_two_reads_answer_in_time() -> None:
    for seed in range(300):
        random = Random(seed)
        clients = random.randint(1, 200)
        # the longest wait is that of the read that goes on and of the next one, with their replies
        reply_s = random.uniform(0, 0.08) / clients
        reads = [random.choice([0.0002, 0.001, 0.01, 0.1]) * random.random() for _ in range(60)]
        accepted, refused = served_in_turn(reads, clients, reply_s, max_wait_ms=400)
        assert refused == 0, (seed, accepted)


def test_reads_that_take_longer_with_each_request_are_noticed() -> None:
    for seed in range(30):
        random = Random(seed)
        clients, reply_s = random.randint(50, 200), random.uniform(0.01, 0.03)
        accepted, refused = served_in_turn([0.001] * 60, clients, reply_s, max_wait_ms=200)
        assert refused > clients / 4, (seed, accepted)


def test_nobody_is_taken_on_while_nothing_gets_done() -> None:
    admission = Admission(max_concurrent=100, max_wait_ms=50)
    admission.enter(0, 1.0)
    admission.enter(0, 1.2)
    with pytest.raises(RequestRejected, match="nothing was answered for 300 ms"):
        admission.enter(0, 1.3)


# -- the store is away -----------------------------------------------------------------------


class BrokenStore:
    """A store that fails on demand, then works again."""

    def __init__(self, store: Any, error: Exception) -> None:
        self._store = store
        self.error: Exception | None = error

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if self.error is not None:
            raise self.error
        return self._store.get_many(keys)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_a_store_that_is_away_is_503_until_it_is_back(make_client: Any, filled: Any) -> None:
    store = BrokenStore(filled.store, OnlineStoreError("redis is away"))
    client = make_client(store=store)
    answer = client.read(READ)
    assert answer.problem == (503, "store_unavailable", STORE_UNAVAILABLE)
    assert answer.headers["retry-after"] == "1"
    store.error = None
    assert client.read(READ).status == 200


def test_an_emptied_store_is_503_and_never_not_found(make_client: Any) -> None:
    answer = make_client(store=MemoryStore()).read(READ)
    assert answer.problem[:2] == (503, "not_ready")
    assert answer.headers["retry-after"] == "1"


def test_a_fault_of_ours_is_500_with_the_id_under_which_the_log_has_it(
    make_client: Any, filled: Any, caplog: Any
) -> None:
    client = make_client(store=BrokenStore(filled.store, ZeroDivisionError("secret")))
    answer = client.read(READ, headers={"x-request-id": "abc-1"})
    assert answer.problem[:2] == (500, "internal")
    assert b"secret" not in answer.body
    assert caplog.records[-1].exc_info is not None
    assert caplog.records[-1].fields["request_id"] == "abc-1"
    assert client.log[-1]["level"] == "error"


def test_a_reply_that_cannot_be_sent_is_500_and_the_next_one_is_answered(
    make_client: Any, filled: Any, monkeypatch: Any, caplog: Any
) -> None:
    client = make_client()
    broken = ((b"x-applied-snapshot", b"clicks=1\r\nset-cookie: a"),)
    with monkeypatch.context() as patched:
        patched.setattr(feature_reads, "freshness_headers", lambda freshness: broken)
        assert client.read(READ).problem[:2] == (500, "internal")
    assert caplog.records[-1].exc_info is not None
    assert client.read(READ).status == 200
