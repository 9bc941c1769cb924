"""Reads without I/O: a generator that yields the keys it needs and is sent their values.

So its caller chooses where to wait: ``get_many`` of a fetcher waits in the caller's thread, the
server in a thread for the store only, while records are merged in the event loop. Two threads that
both compute would compete for the interpreter's lock all the time.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TypeVar

from paimon_features.core.errors import OnlineStoreError
from paimon_features.online.store.store import OnlineStore

T = TypeVar("T")

StoreRead = Generator[Sequence[bytes], Sequence[bytes | None], T]
"""Yields keys and is sent their values, all read at one time (or an OnlineStoreError is thrown into
it); returns the result of the read."""


def read(reading: StoreRead[T], store: OnlineStore) -> T:
    """Run a read with the values of ``store``; returns its result."""
    try:
        keys = next(reading)
        while True:
            try:
                values = store.get_many(keys)
            except OnlineStoreError as error:
                keys = reading.throw(error)
            else:
                keys = reading.send(values)
    except StopIteration as end:
        result: T = end.value
        return result
