"""The entities that the tile table knows: a record of one of them that is missing is lost.

Where an entity has no record, either its rows so far are new, or the store has lost its record
(evicted, deleted, restored without it). Only the table can show it: a record built from the new
rows alone would be a wrong value. The knowledge is exact for one snapshot, the one that a bucket's
marker names, and is read from the table when a record is missing for the first time.

An entity whose newest event is older than every window of an allowed read needs no record: it may
have expired, and a record of its new rows alone is read alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from paimon_features.core.times.clock import Clock
from paimon_features.core.types.array_types import Ints
from paimon_features.core.windows import HOUR_MS
from paimon_features.definitions.aggregates import EVENT_TIME_MAX
from paimon_features.definitions.aggregates.fold import NEVER_MS
from paimon_features.lake.reading.deltas import DataFile, read_file
from paimon_features.online.materialize.record_fold import TileDelta, newest_by_entity
from paimon_features.online.materialize.snapshot_effect import oldest_needed
from paimon_features.online.store.codec import RecordLayout
from paimon_features.online.store.expiry import READ_BEHIND_MS, expire_after_ms
from paimon_features.online.store.markers import EpochContent, Marker


@dataclass(frozen=True, slots=True)
class SeenEntities:
    """Entities by hash, each once and ascending, and their newest event times.

    The hash is Python's own, of 64 bits and with a secret of this process: nobody can choose keys
    that collide. A collision of two entities by chance has no effect but a needless rebuild.
    """

    hashes: Ints
    newest_ms: Ints

    def __len__(self) -> int:
        return len(self.hashes)

    @classmethod
    def of(cls, entities: Sequence[bytes], newest_ms: Ints) -> SeenEntities:
        """Return the entities with these key bytes."""
        return cls(_hashes(entities), newest_ms).sorted()

    @classmethod
    def in_delta(cls, new: TileDelta) -> SeenEntities:
        """Return the entities of some rows, with the newest event time among the rows of each."""
        times = new.cells.rows[EVENT_TIME_MAX.name]
        starts = new.offsets[:-1]
        newest = np.maximum.reduceat(times, starts) if len(starts) else np.empty(0, np.int64)
        return cls.of(new.entities, newest)

    @classmethod
    def together(cls, parts: Sequence[SeenEntities]) -> SeenEntities:
        """Return the entities of all parts, with their newest event times."""
        if not parts:
            return cls(np.empty(0, np.int64), np.empty(0, np.int64))
        if len(parts) == 1:
            return parts[0]
        hashes = np.concatenate([part.hashes for part in parts])
        return cls(hashes, np.concatenate([part.newest_ms for part in parts])).sorted()

    def sorted(self) -> SeenEntities:
        """Return the entities in ascending order, equal ones once."""
        order = np.argsort(self.hashes, kind="stable")
        hashes, newest = self.hashes[order], self.newest_ms[order]
        if not len(hashes):
            return self
        first = np.ones(len(hashes), bool)
        first[1:] = hashes[1:] != hashes[:-1]
        if first.all():
            return SeenEntities(hashes, newest)
        return SeenEntities(hashes[first], np.maximum.reduceat(newest, np.flatnonzero(first)))

    def since(self, from_ms: int) -> SeenEntities:
        """Return those with an event at ``from_ms`` or later."""
        kept = self.newest_ms >= from_ms
        return self if kept.all() else SeenEntities(self.hashes[kept], self.newest_ms[kept])

    def newest_of(self, hashes: Ints) -> Ints:
        """Return the newest event time of each hash; NEVER_MS for those that are not among them."""
        out = np.full(len(hashes), NEVER_MS, np.int64)
        if len(self.hashes):
            at = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
            is_member = self.hashes[at] == hashes
            out[is_member] = self.newest_ms[at[is_member]]
        return out


class KnownEntities:
    """The entities of one bucket at one snapshot of the tile table, 16 bytes each.

    Parts of falling sizes, merged as they grow, so that learning ``n`` entities in any number of
    steps takes about ``n log n`` time.
    """

    def __init__(self) -> None:
        self._parts: list[SeenEntities] = []

    def __len__(self) -> int:
        """Return the number of entries; an entity may have several until its parts are merged."""
        return sum(map(len, self._parts))

    def learn(self, seen: SeenEntities, needed_from_ms: int = NEVER_MS) -> None:
        """Add entities, or newer events of known ones.

        Entities without an event since ``needed_from_ms`` may be forgotten.
        """
        self._parts.append(seen.since(needed_from_ms))
        while len(self._parts) > 1 and len(self._parts[-2]) < 2 * len(self._parts[-1]):
            both = SeenEntities.together(self._parts[-2:])
            self._parts[-2:] = [both.since(needed_from_ms)]
        if not len(self._parts[-1]):
            del self._parts[-1]

    def newest_ms(self, entities: Sequence[bytes]) -> Ints:
        """Return the newest event time of each entity; NEVER_MS for unknown ones."""
        hashes = _hashes(entities)
        newest = np.full(len(hashes), NEVER_MS, np.int64)
        for part in self._parts:
            np.maximum(newest, part.newest_of(hashes), out=newest)
        return newest


class KnownOfShard:
    """The known entities of the buckets of a materializer, each at the snapshot of its marker.

    ``files`` returns the files of a bucket that its records are computed from, at a snapshot.
    """

    def __init__(
        self,
        layout: RecordLayout,
        clock: Clock,
        files: Callable[[EpochContent, int, int], Iterable[DataFile]],
    ) -> None:
        self._layout = layout
        self._clock = clock
        self._files = files
        self._known: dict[int, tuple[tuple[int, int], KnownEntities]] = {}

    def lost(
        self,
        content: EpochContent,
        bucket: int,
        marker: Marker,
        entities: Sequence[bytes],
        alive: Callable[[], None],
    ) -> int:
        """Return how many of these entities without a record must have one at the marker's
        snapshot.

        Reads the keys of the bucket's files on the first call; ``alive`` is called between them.

        Raises
        ------
        SnapshotExpiredError
            If the marker's snapshot no longer exists.
        """
        bucket_entities = self._at(bucket, marker)
        if bucket_entities is None:
            files = self._files(content, bucket, marker.applied_snapshot)
            bucket_entities = _read_known(self._layout, files, alive)
            self.replace(bucket, marker, bucket_entities)
        newest = bucket_entities.newest_ms(entities)
        return int(np.count_nonzero(newest >= self._needed_from_ms(marker)))

    def advance(
        self, bucket: int, before: Marker, after: Marker, seen: Sequence[SeenEntities]
    ) -> None:
        """Learn the entities of the rows after ``before``, if those up to it are known."""
        bucket_entities = self._at(bucket, before)
        if bucket_entities is None:
            self._known.pop(bucket, None)
            return
        for one in seen:
            bucket_entities.learn(one, self._needed_from_ms(after))
        self.replace(bucket, after, bucket_entities)

    def replace(self, bucket: int, marker: Marker, known: KnownEntities) -> None:
        """Set the known entities of a bucket at a marker's snapshot."""
        self._known[bucket] = _snapshot_of(marker), known

    def _at(self, bucket: int, marker: Marker) -> KnownEntities | None:
        at, bucket_entities = self._known.get(bucket, (None, None))
        return bucket_entities if at == _snapshot_of(marker) else None

    def _needed_from_ms(self, marker: Marker) -> int:
        """Return the newest event of an entity whose record must exist is not older."""
        view = self._layout.view
        from_ms = oldest_needed(view, marker.high_ms)
        now_ms, kept_ms = self._clock(), expire_after_ms(view)
        if kept_ms is not None and now_ms >= marker.built_ms + kept_ms - HOUR_MS:
            # reads further back are rejected, because records may have expired
            from_ms = max(from_ms, view.known_from(now_ms - READ_BEHIND_MS))
        return from_ms


def _snapshot_of(marker: Marker) -> tuple[int, int]:
    """Return what identifies a commit: a rollback reuses numbers."""
    return marker.applied_snapshot, marker.identity


def _read_known(
    layout: RecordLayout, files: Iterable[DataFile], alive: Callable[[], None]
) -> KnownEntities:
    entities = KnownEntities()
    for file in files:
        alive()
        table = read_file(file, [*layout.view.keys, EVENT_TIME_MAX.name])
        entities.learn(SeenEntities.of(*newest_by_entity(layout, table)))
    return entities


def _hashes(entities: Sequence[bytes]) -> Ints:
    return np.fromiter(map(hash, entities), np.int64, len(entities))
