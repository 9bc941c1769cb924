"""Runs the producer of chunks in a thread of its own, ahead of the consumer.

One producer thread goes through the positions in order, a few decoding threads work ahead
of it (Arrow releases the interpreter lock), and finished chunks wait in a short queue.
The order is decided before any of that, so threads change the speed and nothing else.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator

from trainer_bridge.readers.block_store import BlockStore
from trainer_bridge.readers.chunks import Chunk


class Prefetcher:
    """Runs an iterator of chunks in a thread, at most ``depth`` chunks ahead.

    An error of the iterator is raised where the consumer expects the next chunk. ``close``
    stops the thread, whatever it is doing, and returns when it has ended.
    """

    def __init__(self, chunks: Iterator[Chunk], store: BlockStore, depth: int = 2) -> None:
        self._chunks = chunks
        self._store = store
        self.depth = depth
        self._ready: deque[Chunk] = deque()
        self._changed = threading.Condition()
        self._done = False
        self._stopped = False
        self._error: BaseException | None = None
        # A daemon, so that a loop left without close() does not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="snapshot-reader", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Chunk]:
        while True:
            with self._changed:
                if not self._ready and not self._done:
                    began = time.perf_counter()
                    self._changed.wait_for(lambda: self._ready or self._done)
                    self._store.stats.wait_s += time.perf_counter() - began
                if not self._ready:
                    if self._error is not None:
                        raise self._error
                    return
                chunk = self._ready.popleft()
                self._changed.notify_all()
            yield chunk
            with self._changed:
                self._changed.notify_all()  # its bytes have been released

    def close(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._thread.join()
        self._ready.clear()

    def _run(self) -> None:
        try:
            for chunk in self._chunks:
                with self._changed:
                    self._wait_for_room()
                    if self._stopped:
                        return
                    self._ready.append(chunk)
                    self._changed.notify_all()
                    # Wait before the next one is made, because it counts from then on.
                    self._wait_for_room()
                    if self._stopped:
                        return
        except BaseException as error:  # raised in the consumer, whatever it is
            self._error = error
        finally:
            with self._changed:
                self._done = True
                self._changed.notify_all()

    def _wait_for_room(self) -> None:
        if not self._has_room():
            began = time.perf_counter()
            self._changed.wait_for(self._has_room)
            self._store.stats.blocked_s += time.perf_counter() - began

    def _has_room(self) -> bool:
        if self._stopped or not self._ready:
            return True
        within = self._store.used_bytes() <= self._store.byte_budget
        return len(self._ready) < self.depth and within
