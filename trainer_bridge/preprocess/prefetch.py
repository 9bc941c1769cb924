"""Background prefetching of batches, in order or as they complete."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from paimon_features.core.process.closeable import Closeable

T = TypeVar("T")
R = TypeVar("R")


class Ahead(Closeable, Generic[T, R]):
    """Map ``work`` over an iterator in threads, at most ``depth`` results ahead.

    One thread iterates over the items, ``threads`` others process them. An exception is raised
    in the position of its result. ``close`` joins all threads.

    Parameters
    ----------
    ordered
        False yields results as they complete: a slow item does not delay the others.

    >>> with Ahead(iter("abc"), str.upper, depth=2) as ahead:
    ...     list(ahead)
    ['A', 'B', 'C']
    """

    def __init__(
        self,
        items: Iterator[T],
        work: Callable[[T], R],
        depth: int,
        threads: int = 1,
        ordered: bool = True,
    ) -> None:
        self._items, self._work = items, work
        self._threads, self._ordered = threads, ordered
        # bounded by the semaphore: counts results in progress as well as those waiting
        self._ready: queue.SimpleQueue[Future[R] | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(depth)
        self._stopped = threading.Event()
        self._error: BaseException | None = None
        # A daemon thread, so that a loop left without close() does not keep the interpreter alive.
        self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[R]:
        while (future := self._ready.get()) is not None:
            self._room.release()
            yield future.result()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Stop the threads, whatever they are doing. Idempotent."""
        self._stopped.set()
        self._room.release()
        self._thread.join()

    def _run(self) -> None:
        pool = ThreadPoolExecutor(self._threads, thread_name_prefix="prefetch-work")
        try:
            while self._has_room():
                item = next(self._items, _END)
                if item is _END:
                    return
                future = pool.submit(self._work, item)  # type: ignore[arg-type]
                if self._ordered:
                    self._ready.put(future)
                else:
                    future.add_done_callback(self._ready.put)
        except BaseException as error:  # any exception is passed to the consumer
            self._error = error
        finally:
            pool.shutdown(wait=True, cancel_futures=self._stopped.is_set())
            close = getattr(self._items, "close", None)
            if close is not None:
                close()
            self._ready.put(None)

    def _has_room(self) -> bool:
        self._room.acquire()
        return not self._stopped.is_set()


_END: Any = object()
