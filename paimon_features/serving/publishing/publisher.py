"""Publishes the features of entities whose tiles have changed.

A pass reads which entities the snapshots since the last pass have changed, as far as the online
store has applied them, then their features from the online store, sends a message for each, and
only then records its position: a consumer of the tile table, so that expiry waits for it. A crash
in between repeats messages and loses none (at least once).
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from paimon_features.core.errors import StoreNotReadyError
from paimon_features.core.times.clock import Clock, now_ms
from paimon_features.definitions import CompiledView
from paimon_features.lake import Lake
from paimon_features.lake.metadata.consumers import (
    advance_consumer,
    consumers,
    delete_consumer,
    register_consumer,
)
from paimon_features.lake.reading.deltas import live_files, read_delta, read_file
from paimon_features.lake.side_folder.generations import GenerationRecord
from paimon_features.online.store.keys import ViewKeys
from paimon_features.online.store.markers import Marker, ViewState
from paimon_features.online.store.store import OnlineStore
from paimon_features.serving.replies.response import OnlineResponse

MAX_SNAPSHOTS = 200
"""The maximum number of snapshots per pass."""
BATCH_ENTITIES = 1_000


@dataclass(frozen=True, slots=True)
class FeatureMessage:
    """A message of one entity; without a value it says that the entity has no features any more."""

    key: bytes
    value: bytes | None


class Sink(Protocol):
    """Where messages go. At the return of ``send`` they are durable, else it raises."""

    def send(self, messages: Sequence[FeatureMessage]) -> None: ...


@dataclass(frozen=True, slots=True)
class PublishProgress:
    """The result of a pass: messages sent, and the snapshot of the tile table up to which."""

    view: str
    messages: int
    snapshot: int
    latest_snapshot: int

    def __str__(self) -> str:
        behind = self.latest_snapshot - self.snapshot
        return f"{self.view}: {self.messages:,} messages, up to snapshot {self.snapshot}" + (
            f", {behind} behind the table" if behind > 0 else ""
        )


class FeaturePublisher:
    """Publishes one view to one sink.

    ``name`` identifies the sink: its position is kept under it. ``identity`` distinguishes it from
    an earlier one of the same name, which had messages that this one lacks. ``generation`` returns
    the
    generation that is served, ``read`` the features of entities from the online store, which
    contain at least what the online store has applied when it is called.
    """

    def __init__(
        self,
        lake: Lake,
        project: str,
        view: CompiledView,
        generation: Callable[[], GenerationRecord],
        store: OnlineStore,
        read: Callable[[Mapping[str, Sequence[Any]], int], OnlineResponse],
        sink: Sink,
        name: str,
        clock: Clock = now_ms,
        identity: str | None = None,
    ) -> None:
        self.view = view
        self._lake = lake
        self._keys = list(view.keys)
        self._view_keys = ViewKeys(project, view.name, store.key_prefix)
        self._generation = generation
        self._store = store
        self._read = read
        self._sink = sink
        self._clock = clock
        self._name = f"publish-{_digest(name)}"
        self.consumer = self._name if identity is None else f"{self._name}-{_digest(identity)}"

    def run_once(self) -> PublishProgress:
        """Publish everything that the online store has applied; the first run every entity.

        Raises
        ------
        StoreNotReadyError
            If the view is not in the online store.
        PublishError
            If messages could not be written; the next run sends them again.
        """
        sent = 0
        while True:
            record = self._generation()
            applied = self._applied(record)
            positions = consumers(self._lake, record.table)
            following = positions.get(self.consumer)
            if following is None:
                if self._name in positions:  # of an earlier release, which kept no identity
                    following = positions[self._name]
                    register_consumer(self._lake, record.table, self.consumer, following)
                else:
                    sent += self._publish_all(record, applied)
                self._delete_others(record.table, positions)
                continue
            if following > applied:
                latest = max(applied, following - 1)
                return PublishProgress(self.view.name, sent, following - 1, latest)
            up_to = min(applied, following + MAX_SNAPSHOTS - 1)
            sent += self._publish(record, self._changed(record.table, following, up_to))
            advance_consumer(self._lake, record.table, self.consumer, up_to + 1)

    def follow(
        self,
        poll_ms: int,
        stop: threading.Event,
        on_pass: Callable[[PublishProgress], None],
    ) -> None:
        """Run passes ``poll_ms`` apart until ``stop`` is set; ``on_pass`` gets those with work."""
        while not stop.is_set():
            done = self.run_once()
            if done.messages:
                on_pass(done)
            stop.wait(poll_ms / 1_000)

    def forget_position(self) -> None:
        """Make the next run publish every entity again."""
        table = self._generation().table
        for consumer in {self._name, self.consumer}:
            delete_consumer(self._lake, table, consumer)

    def _delete_others(self, table: str, positions: Mapping[str, int]) -> None:
        """Delete the positions of earlier sinks of this name, which no longer exist."""
        for other in positions:
            if other.startswith(self._name) and other != self.consumer:
                delete_consumer(self._lake, table, other)

    def _applied(self, record: GenerationRecord) -> int:
        """Return the snapshot that every bucket in the online store contains."""
        raw, *_ = self._store.get_many([self._view_keys.state])
        state = None if raw is None else ViewState.from_bytes(raw)
        if state is None or state.epoch is None or state.content is None:
            raise StoreNotReadyError(
                f"feature view {self.view.name!r} is not in the online store; "
                f"'paimon-features materialize {self.view.name}' loads it"
            )
        if state.content.table != record.table:
            raise StoreNotReadyError(
                f"feature view {self.view.name!r}: the online store still has table "
                f"{state.content.table!r}, expected {record.table!r}; run 'paimon-features "
                f"materialize {self.view.name}'"
            )
        keys = [self._view_keys.bucket(state.epoch, b).marker for b in range(record.buckets)]
        markers = [None if m is None else Marker.from_bytes(m) for m in self._store.get_many(keys)]
        return min(0 if marker is None else marker.applied_snapshot for marker in markers)

    def _publish_all(self, record: GenerationRecord, applied: int) -> int:
        """Publish every entity of the table, and begin to follow its changes."""
        held = f"{self.consumer}-first"
        sent = 0
        if applied > 0:
            # only once everything is sent does the position exist
            register_consumer(self._lake, record.table, held, applied)
            for bucket in range(record.buckets):
                files = live_files(self._lake, record.table, applied, [bucket])
                keys = [read_file(file, self._keys) for file in files]
                sent += self._publish(record, _distinct(keys, self._keys))
        register_consumer(self._lake, record.table, self.consumer, applied + 1)
        delete_consumer(self._lake, record.table, held)
        return sent

    def _changed(self, table: str, first: int, last: int) -> pa.Table:
        """Return the distinct keys of rows that snapshots have added."""
        key_tables = []
        for number in range(first, last + 1):
            delta = read_delta(self._lake, table, number)
            if delta.snapshot.kind == "APPEND":
                key_tables += [read_file(file, self._keys) for file in delta.files]
                key_tables = [_distinct(key_tables, self._keys)]
        return _distinct(key_tables, self._keys)

    def _publish(self, record: GenerationRecord, keys: pa.Table) -> int:
        sent = 0
        for batch in _batches(keys):
            as_of_ms = self._clock()
            response = self._read(batch.to_pydict(), as_of_ms)
            messages = list(self._messages(record, response))
            self._sink.send(messages)
            sent += len(messages)
        return sent

    def _messages(
        self, record: GenerationRecord, response: OnlineResponse
    ) -> Iterator[FeatureMessage]:
        import msgspec

        applied = response.freshness[self.view.name].applied_snapshot
        statuses = response.statuses.to_pydict()
        for number, row in enumerate(response.to_pylist()):
            entity = {name: row.pop(name) for name in self._keys}
            key = msgspec.json.encode(entity)
            by_feature = {name: values[number] for name, values in statuses.items()}
            if set(by_feature.values()) == {"MISSING"}:
                yield FeatureMessage(key, None)
                continue
            body = {
                "entity": entity,
                "features": row,
                "statuses": by_feature,
                "as_of_ms": response.as_of_ms,
                "table": record.table,
                "snapshot": applied,
            }
            yield FeatureMessage(key, msgspec.json.encode(body))


def _distinct(tables: Sequence[pa.Table], keys: Sequence[str]) -> pa.Table:
    if not tables:
        return pa.table({name: pa.nulls(0) for name in keys})
    return pa.concat_tables(tables).group_by(list(keys)).aggregate([]).select(list(keys))


def _batches(keys: pa.Table) -> Iterator[pa.Table]:
    for start in range(0, keys.num_rows, BATCH_ENTITIES):
        yield keys.slice(start, BATCH_ENTITIES)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
