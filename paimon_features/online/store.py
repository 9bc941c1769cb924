"""What an online store can do: the contract of Redis, of the memory store, of any other.

A store maps keys to bytes. Records and markers change by compare-and-set only, so that writers
that do not know of each other cannot undo one another's work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable


class Write(NamedTuple):
    """One compare-and-set.

    The write happens if the stored value begins with ``expected`` (None: if there is no value).
    ``expire_ms`` removes the key so long after the write; None keeps it, and lifts an earlier
    expiry.
    """

    key: bytes
    expected: bytes | None
    value: bytes
    expire_ms: int | None = None


class Lease(NamedTuple):
    """Who holds a lease: ``fence`` grows whenever another owner takes it."""

    owner: str
    fence: int
    mine: bool


@runtime_checkable
class OnlineStore(Protocol):
    """Bytes by key. Every method raises ``OnlineStoreError`` if the store cannot be asked.

    A *run* names one life of the server that holds a bucket: after a restart or a failover,
    which may have lost the newest writes, it is another one.
    """

    key_prefix: str
    """What all keys of the project begin with (see ``keys``)."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of ``keys`` in their order; None where there is none.

        Those with one hash tag (a bucket's records and its marker) are read at one time. Those
        with several are too on one server, but not on a cluster, where a view's state may be
        some moments older or newer than its buckets. So a reader reads an epoch only if a state
        named it as complete, and believes a record only beside the marker of its bucket.
        """

    def compare_and_set_many(self, writes: Sequence[Write], run: str | None = None) -> list[bool]:
        """Do each write whose expectation holds, and say which were done.

        All keys belong to one bucket. With ``run``, nothing is written (OnlineStoreError)
        unless the server is still in this run. If OnlineStoreError is raised, any of the writes
        may have been done, or be done a little later.
        """

    def run_and_values(self, keys: Sequence[bytes]) -> tuple[str, list[bytes | None]]:
        """The server's run and the values of ``keys`` (of one bucket), at one time."""

    def acquire_lease(self, key: bytes, owner: str, ttl_ms: int) -> Lease:
        """Take the lease if it is free or ours already, for ``ttl_ms`` from now."""

    def release_lease(self, key: bytes, owner: str) -> None:
        """Give the lease back if it is ours."""

    def delete(self, keys: Sequence[bytes]) -> None:
        """Remove keys; harmless where there is none."""

    def delete_orphans(self, orphans: Mapping[bytes, Sequence[bytes]]) -> None:
        """Remove the keys of each bucket for which the key they stand under is not there.

        That one, the bucket's marker, is of the same bucket, and is looked at in the same step.
        So records go only where no reader believes them, whatever happened to the server since
        the marker was deleted: one that was restarted may have an older marker back.
        """

    def scan(self, prefix: bytes) -> Iterator[list[bytes]]:
        """The keys that begin with ``prefix``, page by page.

        A key that is there from the first page to the last comes at least once, unless a
        cluster moves it to another node meanwhile.
        """

    def check(self) -> None:
        """Raise OnlineStoreError unless the store answers, can be written to, and drops no keys."""

    def close(self) -> None:
        """Let go of connections."""
