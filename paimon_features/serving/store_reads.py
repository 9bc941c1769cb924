"""Reads apart from the store: a generator that yields the keys it wants and is sent their values.

So whoever drives it chooses where it waits: ``get_many`` of a fetcher in the caller's thread, the
server in a thread of the store's own, while the merge is done in the event loop. The two would
otherwise take the interpreter's lock from each other all the time.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TypeVar

from paimon_features.errors import OnlineStoreError
from paimon_features.online.store import OnlineStore

T = TypeVar("T")

StoreRead = Generator[Sequence[bytes], Sequence[bytes | None], T]
"""Yields keys and gets their values, all at one time (or an OnlineStoreError is thrown into it);
returns what was read."""


def read(reading: StoreRead[T], store: OnlineStore) -> T:
    """Let a reading have its values from ``store``, and give what it returns."""
    try:
        keys = next(reading)
        while True:
            try:
                found = store.get_many(keys)
            except OnlineStoreError as error:
                keys = reading.throw(error)
            else:
                keys = reading.send(found)
    except StopIteration as end:
        result: T = end.value
        return result
