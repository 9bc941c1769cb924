"""Requests that arrive at the same time are read together: one command to the store, one merge."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from paimon_features.core.errors import (
    DefinitionError,
    OnlineStoreError,
    OverloadedError,
    PaimonFeaturesError,
)
from paimon_features.online.store.store import LoopReader, OnlineStore, ReadsInLoop
from paimon_features.serving.reading.query import FeatureQuery
from paimon_features.serving.reading.store_reads import StoreRead
from paimon_features.serving.replies.response import OnlineResponse

LOGGER = logging.getLogger("paimon_features.serve")

MAX_ROWS = 256
"""Most entities read together by default. More would be no cheaper, and while the values of one
read are processed the store can already look for those of the next."""
_OVERLAP_ROWS = 64
"""From so many entities on the next read begins before the values of one are processed. Of fewer,
more queries would be read together if it began afterwards."""
MAX_WAITING = 1_024
"""Most queries that wait, by default."""


class Reader(Protocol):
    """Answers queries: a fetcher, or a cache in front of one."""

    @property
    def store(self) -> OnlineStore:
        """The store that it reads."""

    def read_steps(
        self, queries: Sequence[FeatureQuery]
    ) -> StoreRead[list[OnlineResponse | PaimonFeaturesError]]:
        """Return the response to each query, or its own error, in the order of the queries."""


OnStoreRead = Callable[[float, int], None]
"""Called after each read of the store for a query: its seconds, and the keys of the whole batch."""


class PendingQuery:
    """A query whose response is awaited: ``deliver`` gets it once, rendered, or an error."""

    __slots__ = ("_deliver", "_is_over", "fetcher", "on_store_read", "query", "render", "rows")

    def __init__(
        self,
        query: FeatureQuery,
        fetcher: Reader,
        render: Callable[[OnlineResponse], Any] | None,
        deliver: Callable[[Any], None],
        on_store_read: OnStoreRead | None = None,
    ) -> None:
        self.query = query
        self.on_store_read = on_store_read
        self.rows = _rows(query)
        self.fetcher = fetcher
        self.render = render
        self._deliver = deliver
        self._is_over = False

    @property
    def is_over(self) -> bool:
        """Whether it was answered or given up."""
        return self._is_over

    def deliver(self, answer: Any) -> None:
        """Pass on the answer or the error, if nothing was passed on yet."""
        if not self._is_over:
            self._is_over = True
            self._deliver(answer)

    def give_up(self) -> None:
        """Stop waiting for the answer; a query that still waits is not read."""
        self.deliver(OverloadedError("the request was given up"))


class Coalescer:
    """Answers the queries of one event loop together.

    The store is read in the loop where its client can (``OnlineStore`` with ``loop_reader``), else,
    and for many keys or after a failure, by a thread of its own: a store that hangs does not block
    the loop. Its values are processed in the loop (see ``store_reads``).

    ::

        queries  a        b c d          e
        store    [--- a ----][-- b c d --][- e -]
        loop                 [ a ]        [ b c d ][ e ]

    While a read is in flight, queries wait for the next one, which takes all of them, up to
    ``max_rows`` entities. It begins when those of the one before are processed, or, if they are
    many, when they have arrived. If the reader is idle, a query is read in the event loop's next
    iteration, together with those that arrived in the same one: no query waits for others. A query
    is read with the ``fetcher`` that was set when it arrived, so the fetcher can be replaced at any
    time: waiting queries still use the old one, and no batch mixes two.

    To be used from the thread of one event loop.
    """

    def __init__(
        self, fetcher: Reader, *, max_rows: int = MAX_ROWS, max_waiting: int = MAX_WAITING
    ) -> None:
        if max_rows < 1 or max_waiting < 1:
            raise DefinitionError(
                f"max_rows={max_rows}, max_waiting={max_waiting}: expected at least 1"
            )
        self.fetcher = fetcher
        self.batches = 0
        """Reads so far."""
        self.queries = 0
        """Queries read so far, without those that were cancelled while they waited."""
        self._max_rows = max_rows
        self._max_waiting = max_waiting
        self._waiting: deque[PendingQuery] = deque()
        self._thread = ThreadPoolExecutor(1, "online-reads")
        self._loop_reader: LoopReader | None = None
        self._loop_reader_of: OnlineStore | None = None
        self._reading = False
        """Whether a read is in flight, or is about to begin."""
        self._closed = False

    @property
    def waiting(self) -> int:
        """The number of queries that wait for the next read."""
        return len(self._waiting)

    def submit(
        self,
        query: FeatureQuery,
        render: Callable[[OnlineResponse], Any] | None,
        deliver: Callable[[Any], None],
        on_store_read: OnStoreRead | None = None,
    ) -> PendingQuery:
        """Read a query: ``deliver`` gets its response, what ``render`` returns for it, or an error.

        Raises
        ------
        OverloadedError
            If ``max_waiting`` queries are waiting.
        """
        self._check_room()
        pending = PendingQuery(query, self.fetcher, render, deliver, on_store_read)
        self._waiting.append(pending)
        if not self._reading:
            self._reading = True
            loop = asyncio.get_running_loop()
            loop.call_soon(self._next, loop)
        return pending

    def close(self) -> None:
        """Reject waiting and new queries, and release the thread once its read is done."""
        self._closed = True
        self._thread.shutdown(wait=False)
        if self._loop_reader is not None:
            self._loop_reader.close()
        while self._waiting:
            self._waiting.popleft().deliver(_closing())

    def _check_room(self) -> None:
        if self._closed:
            raise _closing()
        if len(self._waiting) >= self._max_waiting:
            self._waiting = deque(one for one in self._waiting if not one.is_over)
            if len(self._waiting) >= self._max_waiting:
                raise OverloadedError(
                    f"{len(self._waiting)} requests are waiting, the most that may; retry later, "
                    "or run more workers"
                )

    # -- in the event loop -----------------------------------------------------------------

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the next read, if any query waits for one."""
        batch = self._take()
        self._reading = bool(batch) and not self._closed
        if self._reading:
            self.batches += 1
            self.queries += len(batch)
            self._advance(loop, _BatchRead(batch), None)

    def _take(self) -> list[PendingQuery]:
        """Return the oldest queries of one fetcher, of at most ``max_rows`` entities, but at least
        one."""
        batch: list[PendingQuery] = []
        rows = 0
        while self._waiting:
            first = self._waiting[0]
            if first.is_over:  # cancelled, or out of time
                self._waiting.popleft()
                continue
            rows += first.rows
            if batch and (rows > self._max_rows or first.fetcher is not batch[0].fetcher):
                break
            batch.append(self._waiting.popleft())
        return batch

    def _advance(
        self,
        loop: asyncio.AbstractEventLoop,
        read: _BatchRead,
        found: Sequence[bytes | None] | BaseException | None,
    ) -> None:
        """Continue a read until it needs something from the store, or is done."""
        if read.is_observed:
            read.note_end()
        try:
            if isinstance(found, BaseException):
                keys = read.reading.throw(found)
            else:
                keys = read.reading.send(found)  # type: ignore[arg-type]
        except StopIteration as end:
            self._deliver(loop, read, end.value)
        except Exception as error:  # a defect: each caller gets it, and the next read continues
            self._deliver(loop, read, [error] * len(read.batch))
        else:
            self._read_keys(loop, read, keys)

    def _read_keys(
        self, loop: asyncio.AbstractEventLoop, read: _BatchRead, keys: Sequence[bytes]
    ) -> None:
        if read.is_observed:
            read.note_start(len(keys))
        store = read.batch[0].fetcher.store
        reader = self._reader_in(loop, store)
        if reader is None or self._closed:
            self._read_in_thread(loop, read, keys, store.get_many)
            return

        def continued(found: Sequence[bytes | None] | OnlineStoreError | None) -> None:
            if found is None:
                self._read_in_thread(loop, read, keys, reader.repeat)
                return
            if self._waiting and read.rows >= _OVERLAP_ROWS and isinstance(found, list):
                read.is_last = False
                self._next(loop)
            self._advance(loop, read, found)

        if not reader.get_many(keys, continued):
            self._read_in_thread(loop, read, keys, store.get_many)

    def _reader_in(self, loop: asyncio.AbstractEventLoop, store: OnlineStore) -> LoopReader | None:
        """Return the store's reader in this loop, None if it has none."""
        if store is not self._loop_reader_of:
            if self._loop_reader is not None:
                self._loop_reader.close()
            self._loop_reader_of = store
            self._loop_reader = None
            if isinstance(store, ReadsInLoop):
                self._loop_reader = store.loop_reader(loop)
        return self._loop_reader

    def _read_in_thread(
        self,
        loop: asyncio.AbstractEventLoop,
        read: _BatchRead,
        keys: Sequence[bytes],
        get_many: Callable[[Sequence[bytes]], list[bytes | None]],
    ) -> None:
        try:
            self._thread.submit(self._fetch, loop, read, keys, get_many)
        except RuntimeError:  # closed while a read was under way that wants more
            self._deliver(loop, read, [_closing()] * len(read.batch))

    def _deliver(
        self,
        loop: asyncio.AbstractEventLoop,
        read: _BatchRead,
        answers: Sequence[Any],
    ) -> None:
        for waiting, answer in zip(read.batch, answers, strict=True):
            if waiting.is_over:
                continue
            try:
                waiting.deliver(_rendered(waiting.render, answer))
            except Exception:  # a defect; the others have their answers all the same
                LOGGER.exception("an answer could not be delivered")
        if not read.is_last:
            return  # another one is in flight, and continues with those that wait
        if self._waiting:
            # after the replies: clients that are answered now may send their next request
            loop.call_soon(self._next, loop)
        else:
            self._reading = False

    # -- in the store's thread -------------------------------------------------------------

    def _fetch(
        self,
        loop: asyncio.AbstractEventLoop,
        read: _BatchRead,
        keys: Sequence[bytes],
        get_many: Callable[[Sequence[bytes]], list[bytes | None]],
    ) -> None:
        outcome: Sequence[bytes | None] | BaseException
        try:
            outcome = get_many(keys)
        except Exception as error:
            outcome = error
        try:
            loop.call_soon_threadsafe(self._advance, loop, read, outcome)
        except RuntimeError:  # the loop is closed: no query waits any more
            return


class _BatchRead:
    """A batch of queries, and the steps of its read."""

    def __init__(self, batch: Sequence[PendingQuery]) -> None:
        self.batch = batch
        self.rows = sum(one.rows for one in batch)
        self.is_last = True
        """Whether no read was begun after it."""
        self.reading = batch[0].fetcher.read_steps([one.query for one in batch])
        self.is_observed = any(one.on_store_read is not None for one in batch)
        self._started_s: float | None = None
        self._keys = 0

    def note_start(self, keys: int) -> None:
        """Note that a read of the store begins."""
        self._started_s, self._keys = time.perf_counter(), keys

    def note_end(self) -> None:
        """Report the read of the store that has just ended, if there was one."""
        if self._started_s is None:
            return
        took_s, self._started_s = time.perf_counter() - self._started_s, None
        for one in self.batch:
            if one.on_store_read is not None:
                one.on_store_read(took_s, self._keys)


def _closing() -> OverloadedError:
    return OverloadedError("the server is shutting down; use another one")


def _rendered(render: Callable[[OnlineResponse], Any] | None, answer: Any) -> Any:
    if render is None or isinstance(answer, Exception):
        return answer
    try:
        return render(answer)
    except Exception as error:
        return error


def _rows(query: FeatureQuery) -> int:
    """Return the number of entities of a query, as far as it is known before the query is
    checked."""
    for values in query.entities.values():
        try:
            return len(values)  # type: ignore[arg-type]
        except TypeError:
            return 1
    return 0
