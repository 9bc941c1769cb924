"""Coalesced reads: everybody gets their own answer, and nobody waits for nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from paimon_features.core.errors import DefinitionError, OverloadedError, RequestError
from paimon_features.definitions import FeatureRef, Selection
from paimon_features.online.store import MemoryStore
from paimon_features.serving.reading.coalesce import Coalescer
from paimon_features.serving.reading.fetcher import FeatureFetcher
from paimon_features.serving.reading.query import FeatureQuery
from paimon_features.serving.reading.store_reads import StoreRead
from paimon_features.serving.replies.response import OnlineResponse
from tests.serving.coalesced import answered
from tests.waiting import LONG_S

SELECTION = Selection.of([FeatureRef("v", "count_1h")])


class SlowStore(MemoryStore):
    """Answers when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Semaphore(0)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self.go.acquire(timeout=120)
        return super().get_many(keys)


class SlowFetcher(FeatureFetcher):
    """Answers a query of user ``n`` with ``n``, or -1 with an error, when it is released."""

    def __init__(self) -> None:
        store = SlowStore()
        super().__init__("shop", [], store)
        self.batches: list[list[int]] = []
        self.go = store.go

    def read_steps(self, queries: Sequence[FeatureQuery]) -> StoreRead[list[Any]]:
        users: list[int] = [one.entities["user"][0] for one in queries]  # type: ignore[index]
        self.batches.append(users)
        yield [b"key"]
        return [RequestError("minus one") if user == -1 else user for user in users]


def query(user: int, rows: int = 1) -> FeatureQuery:
    return FeatureQuery(SELECTION, {"user": [user] * rows}, 0)


def run(
    test: Callable[[SlowFetcher, Coalescer], Coroutine[Any, Any, None]], **options: Any
) -> None:
    async def main() -> None:
        fetcher = SlowFetcher()
        coalescer = Coalescer(fetcher, **options)
        try:
            await asyncio.wait_for(test(fetcher, coalescer), LONG_S)
        finally:
            fetcher.go.release(100)
            coalescer.close()

    asyncio.run(main())


async def begun(fetcher: SlowFetcher, count: int) -> None:
    """Wait until so many reads have begun."""
    while len(fetcher.batches) < count:
        await asyncio.sleep(0.001)


def test_asks_that_come_during_a_read_are_read_together() -> None:
    async def test(fetcher: SlowFetcher, coalescer: Coalescer) -> None:
        first = asyncio.create_task(answered(coalescer, query(1)))
        await begun(fetcher, 1)
        others = [asyncio.create_task(answered(coalescer, query(user))) for user in (2, 3, 4)]
        await asyncio.sleep(0)
        assert coalescer.waiting == 3
        fetcher.go.release(2)
        assert await asyncio.gather(first, *others) == [1, 2, 3, 4]
        assert fetcher.batches == [[1], [2, 3, 4]]
        assert (coalescer.batches, coalescer.queries, coalescer.waiting) == (2, 4, 0)

    run(test)


class LoopStore(SlowStore):
    """Read in the loop: ``answer`` gives the values of the read that is in flight."""

    def __init__(self) -> None:
        super().__init__()
        self.done: Callable[[list[bytes | None]], None] | None = None

    def loop_reader(self, loop: asyncio.AbstractEventLoop) -> Any:
        return self

    def get_many(self, keys: Sequence[bytes], done: Any = None) -> Any:  # type: ignore[override]
        assert self.done is None, "one read at a time"
        self.done = done
        return True

    def answer(self) -> None:
        done, self.done = self.done, None
        assert done is not None
        done([b"value"])


@pytest.mark.parametrize(("rows", "overlap"), [(100, True), (1, False)])
def test_the_store_looks_for_the_next_values_while_many_are_processed(
    rows: int, overlap: bool
) -> None:
    in_flight: list[bool] = []
    store = LoopStore()

    class Watched(SlowFetcher):
        def read_steps(self, queries: Sequence[FeatureQuery]) -> StoreRead[list[Any]]:
            answers = yield from super().read_steps(queries)
            in_flight.append(store.done is not None)
            return answers

    async def main() -> None:
        fetcher = Watched()
        fetcher.store = store
        coalescer = Coalescer(fetcher)
        first = asyncio.create_task(answered(coalescer, query(1, rows)))
        await begun(fetcher, 1)
        others = [asyncio.create_task(answered(coalescer, query(n, rows))) for n in (2, 3)]
        await asyncio.sleep(0)
        store.answer()
        assert await first == 1
        later = asyncio.create_task(answered(coalescer, query(4, rows)))
        while not later.done():
            if store.done is not None:
                store.answer()
            await asyncio.sleep(0)
        assert await asyncio.gather(*others, later) == [2, 3, 4]
        assert in_flight == [overlap, False, False]
        assert coalescer.waiting == 0
        coalescer.close()

    asyncio.run(asyncio.wait_for(main(), LONG_S))


def test_asks_of_one_turn_of_the_loop_go_together() -> None:
    async def test(fetcher: SlowFetcher, coalescer: Coalescer) -> None:
        fetcher.go.release(1)
        await asyncio.gather(*(answered(coalescer, query(user)) for user in range(5)))
        assert fetcher.batches == [[0, 1, 2, 3, 4]]

    run(test)


def test_a_read_takes_no_more_entities_than_it_may_but_one_ask_at_least() -> None:
    async def test(fetcher: SlowFetcher, coalescer: Coalescer) -> None:
        fetcher.go.release(9)
        queries = [query(1, 3), query(2, 2), query(3, 9), query(4, 5), query(5, 1)]
        assert await asyncio.gather(*(answered(coalescer, one) for one in queries)) == [
            1,
            2,
            3,
            4,
            5,
        ]
        assert fetcher.batches == [[1, 2], [3], [4], [5]]

    run(test, max_rows=5)


def test_an_error_is_reported_to_the_one_who_has_it() -> None:
    async def test(fetcher: SlowFetcher, coalescer: Coalescer) -> None:
        fetcher.go.release(1)
        got = await asyncio.gather(
            *(answered(coalescer, query(user)) for user in (1, -1, 3)), return_exceptions=True
        )
        assert (got[0], got[2]) == (1, 3)
        assert isinstance(got[1], RequestError)

    run(test)


def test_an_error_of_rendering_is_ones_own() -> None:
    async def test(fetcher: SlowFetcher, coalescer: Coalescer) -> None:
        def render(answer: OnlineResponse) -> Any:
            assert answer == 2, "not two"  # type: ignore[comparison-overlap]
            return "rendered"

        fetcher.go.release(1)
        one, two = await asyncio.gather(
            answered(coalescer, query(1), render),
            answered(coalescer, query(2), render),
            return_exceptions=True,
        )
        assert isinstance(one, AssertionError)
        assert two == "rendered"

    run(test)


def test_a_full_queue_refuses_at_once_and_one_that_was_left_has_room() -> None:
    async def test(fetcher: SlowFetcher, coalescer: Coalescer) -> None:
        first = asyncio.create_task(answered(coalescer, query(1)))
        await begun(fetcher, 1)
        waiting = [asyncio.create_task(answered(coalescer, query(user))) for user in (2, 3)]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match="2 requests are waiting"):
            await answered(coalescer, query(4))
        waiting[0].cancel()
        await asyncio.sleep(0)
        fourth = asyncio.create_task(answered(coalescer, query(4)))
        await asyncio.sleep(0)
        fetcher.go.release(9)
        assert await asyncio.gather(first, waiting[1], fourth) == [1, 3, 4]
        assert fetcher.batches == [[1], [3, 4]]

    run(test, max_waiting=2)


def test_a_query_that_is_out_of_time_while_it_waits_is_not_read() -> None:
    async def test(fetcher: SlowFetcher, coalescer: Coalescer) -> None:
        read = asyncio.create_task(asyncio.wait_for(answered(coalescer, query(1)), 0.02))
        await begun(fetcher, 1)
        waits = asyncio.create_task(asyncio.wait_for(answered(coalescer, query(2)), 0.02))
        patient = asyncio.create_task(answered(coalescer, query(3)))
        for late in (read, waits):
            with pytest.raises(TimeoutError):
                await late
        fetcher.go.release(9)
        assert await patient == 3
        assert fetcher.batches == [[1], [3]]

    run(test)


def test_another_fetcher_takes_over_without_a_mixed_or_a_lost_answer() -> None:
    async def test(fetcher: SlowFetcher, coalescer: Coalescer) -> None:
        other = SlowFetcher()
        other.go.release(9)
        tasks = [asyncio.create_task(answered(coalescer, query(1)))]
        await begun(fetcher, 1)
        tasks.append(asyncio.create_task(answered(coalescer, query(2))))
        await asyncio.sleep(0)
        coalescer.fetcher = other
        tasks.append(asyncio.create_task(answered(coalescer, query(3))))
        await asyncio.sleep(0)
        fetcher.go.release(9)
        assert await asyncio.gather(*tasks) == [1, 2, 3]
        assert (fetcher.batches, other.batches) == ([[1], [2]], [[3]])

    run(test)


def test_a_closed_one_refuses_and_answers_what_it_has_begun() -> None:
    async def test(fetcher: SlowFetcher, coalescer: Coalescer) -> None:
        read = asyncio.create_task(answered(coalescer, query(1)))
        await begun(fetcher, 1)
        waits = asyncio.create_task(answered(coalescer, query(2)))
        await asyncio.sleep(0)
        coalescer.close()
        for refused in (waits, answered(coalescer, query(3))):
            with pytest.raises(OverloadedError, match="shutting down"):
                await refused
        fetcher.go.release(9)
        assert await read == 1

    run(test)


def test_a_queue_without_room_is_no_queue() -> None:
    fetcher = FeatureFetcher("shop", [], MemoryStore())
    for options in ({"max_rows": 0}, {"max_waiting": 0}):
        with pytest.raises(DefinitionError, match="at least 1"):
            Coalescer(fetcher, **options)
