"""Epochs: generations of records that are built in the background and switched atomically.

The state of a view names the current epoch and the one under construction. Both change by
compare-and-set, so that several materializers (shards) agree on one new epoch, and the switch
happens once, when every bucket is complete.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from paimon_features.core.errors import OnlineStoreError
from paimon_features.online.store.keys import MARKER_END, ViewKeys, new_epoch
from paimon_features.online.store.markers import Building, EpochContent, Marker, ViewState
from paimon_features.online.store.store import OnlineStore, Write, evicted_keys

_ATTEMPTS = 20


class Epochs:
    """The state of one view in the store."""

    def __init__(self, store: OnlineStore, keys: ViewKeys) -> None:
        self._store = store
        self._keys = keys

    def state(self) -> ViewState:
        """Return the stored state; an empty one if there is none."""
        return self._read()[1]

    def begin(self, content: EpochContent, now_ms: int, *, spoiled: str | None = None) -> Building:
        """Return the epoch under construction from ``content``, or start one.

        ``spoiled`` is an epoch that can no longer be completed and is replaced.
        """
        evicted = evicted_keys(self._store.evictions())
        for _ in range(_ATTEMPTS):
            raw, state = self._read()
            begun = state.building
            if begun is not None and begun.content == content and begun.epoch != spoiled:
                return begun
            building = Building(new_epoch(), content, now_ms, evicted)
            if self._write(raw, replace(state, building=building)):
                return building
        raise self._contended()

    def switch(self, building: Building) -> bool:
        """Make a complete epoch the current one.

        False if some bucket is not complete yet. True also if another process switched already.
        """
        for _ in range(_ATTEMPTS):
            raw, state = self._read()
            if state.epoch == building.epoch:
                return True
            if state.building != building or not self.complete(building):
                return False
            switched = ViewState(building.epoch, building.content, None, building.evicted)
            if self._write(raw, switched):
                return True
        raise self._contended()

    def complete(self, building: Building) -> bool:
        """Return True if every bucket of the epoch has a complete marker."""
        markers = self.markers(building.epoch, range(building.content.buckets))
        return all(marker is not None and marker.complete for marker in markers)

    def markers(self, epoch: str, buckets: Sequence[int]) -> list[Marker | None]:
        """Return the markers of some buckets."""
        values = self._store.get_many([self._keys.bucket(epoch, b).marker for b in buckets])
        return [None if data is None else Marker.from_bytes(data) for data in values]

    def sweep(self) -> Iterator[int]:
        """Delete the keys of all epochs except the current one and the one being built.

        Yields counts. A bucket's marker is deleted before its records, and no record is deleted
        while the marker exists. A reader of an old state thus sees a missing bucket, never a
        missing entity; also if the server restarted meanwhile with an older state and all markers.
        """
        for page in self._store.scan(self._keys.all_epochs):
            buckets = self._stale([key for key in page if key.endswith(MARKER_END)])
            markers = [m for m, keys in buckets.items() if m in keys]  # not an entity of that name
            self._store.delete(markers)
            yield len(markers)
        for page in self._store.scan(self._keys.all_epochs):
            orphans = {
                marker: [key for key in keys if key != marker]
                for marker, keys in self._stale(page).items()
            }
            self._store.delete_orphans(orphans)
            yield sum(map(len, orphans.values()))

    def _stale(self, keys: Sequence[bytes]) -> dict[bytes, list[bytes]]:
        """Return those of ``keys`` whose epoch is neither current nor under construction, by
        marker."""
        if not keys:
            return {}
        state = self.state()
        used = {state.epoch, None if state.building is None else state.building.epoch}
        buckets = self._keys.by_marker(keys)
        return {m: stale for m, stale in buckets.items() if self._keys.epoch_of(m) not in used}

    def _read(self) -> tuple[bytes | None, ViewState]:
        raw = self._store.get_many([self._keys.state])[0]
        return raw, ViewState() if raw is None else ViewState.from_bytes(raw)

    def _write(self, before: bytes | None, state: ViewState) -> bool:
        write = Write(self._keys.state, before, state.to_bytes())
        return self._store.compare_and_set_many([write])[0]

    def _contended(self) -> OnlineStoreError:
        return OnlineStoreError(
            f"{self._keys.state.decode()} changes faster than it can be written; "
            "are several materializers with different definitions running?"
        )
