"""Which snapshot of each table is read: chosen once, at the start of a read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paimon_features.core.errors import GenerationError, RequestError, SnapshotExpiredError
from paimon_features.definitions import CompiledView
from paimon_features.lake import Lake, Snapshot, latest_snapshot
from paimon_features.lake.metadata import table_history
from paimon_features.lake.metadata.snapshots import (
    SnapshotRef,
    check_pin,
    pinned,
    snapshot_as_of,
    split_ref,
)
from paimon_features.lake.side_folder import generations
from paimon_features.lake.side_folder.generations import GenerationRecord
from paimon_features.tiles.consumed import (
    appended_after,
    check_filled,
    consumed_events,
    not_consumed,
    position,
    unfilled,
)

_ATTEMPTS = 5
"""How often the pins of a view are chosen again because its job has moved on meanwhile."""


@dataclass(frozen=True, slots=True)
class Pin:
    """One table at one snapshot; ``snapshot_id`` is None where it had no commit yet.

    ``commit`` identifies the snapshot when its number is used again, after a rollback or when the
    table is created again. A pin without it, of an earlier release or made by hand, is a plain
    number: an error if the table has used the number before. ``tiles`` is the tile table for which
    these events are read, where the tile tables of one read contain different events.
    """

    table: str
    snapshot_id: int | None
    commit: str | None = None
    tiles: str | None = None

    @classmethod
    def of(cls, table: str, snapshot: Snapshot | None) -> Pin:
        """Return the pin of a snapshot that was found; None: the table has no commit."""
        return cls(table, None) if snapshot is None else cls(table, snapshot.id, snapshot.commit)

    @classmethod
    def parse(cls, table: str, ref: SnapshotRef | None) -> Pin:
        """Return the pin of a number or ``number@commit``; RequestError for other text."""
        return cls(table, None) if ref is None else cls(table, *split_ref(ref))

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Pin:
        """Return the inverse of ``to_document``."""
        return cls(
            document["table"],
            document["snapshot_id"],
            document.get("commit"),
            document.get("tiles"),
        )

    @property
    def ref(self) -> SnapshotRef | None:
        """As the snapshot is named in ``as_of``: ``number@commit``."""
        numbered = self.snapshot_id is not None and self.commit is not None
        return f"{self.snapshot_id}@{self.commit}" if numbered else self.snapshot_id

    def describe(self) -> str:
        """Return the table and its snapshot, for people.

        >>> Pin("tiles_spend_g1", 7).describe(), Pin("events_spend", None).describe()
        ('tiles_spend_g1, snapshot 7', 'events_spend, no snapshot yet')
        """
        at = "no snapshot yet" if self.snapshot_id is None else f"snapshot {self.snapshot_id}"
        return f"{self.table}, {at}"

    def to_document(self) -> dict[str, object]:
        """Return the canonical JSON form."""
        tiles_entry: dict[str, object] = {} if self.tiles is None else {"tiles": self.tiles}
        pin = {"table": self.table, "snapshot_id": self.snapshot_id, "commit": self.commit}
        return {**pin, **tiles_entry}

    def check(self, lake: Lake) -> None:
        """Raise SnapshotExpiredError if the number is that of another commit by now."""
        if self.ref is not None:
            check_pin(lake, self.table, self.ref)


AsOf = int | Mapping[str, SnapshotRef | None] | Sequence[Pin] | None
"""What a read may see: data committed by a time (UTC ms, inclusive), exactly these snapshots by
table (a number, or ``number@commit``), the pins of an earlier read, or the newest commits (None).
"""


class Pinner:
    """Chooses a snapshot for each requested table, by one rule.

    ``done`` checks that every named table was requested.
    """

    def __init__(self, lake: Lake, as_of: AsOf) -> None:
        self.lake = lake
        self.time_ms = as_of if isinstance(as_of, int) else None
        self._named: dict[str, Pin] | None = None
        self._named_for: dict[tuple[str, str | None], Pin] = {}
        self._used: dict[str, Pin] = {}
        self.not_included: dict[str, int] = {}
        """Commits of events that a view's tiles do not contain, by the name of the view."""
        if isinstance(as_of, Mapping):
            self._named = {table: Pin.parse(table, ref) for table, ref in as_of.items()}
        elif as_of is not None and not isinstance(as_of, int):
            self._named = {pin.table: pin for pin in as_of}
            self._named_for = {(pin.table, pin.tiles): pin for pin in as_of}

    def pin(self, table: str) -> Pin:
        """Return the snapshot of a table; repeated calls return the same one.

        Raises
        ------
        SnapshotExpiredError
            If it has expired, or its number is that of another commit.
        RequestError
            If snapshots were named and this table is not among them.
        """
        if table not in self._used:
            self._used[table] = self._pinned(table)
        return self._used[table]

    def generation(
        self, view: CompiledView, current: Callable[[CompiledView], GenerationRecord]
    ) -> GenerationRecord:
        """Return the generation of a view that is read: by default the current one.

        For a time it is the one that was active then, for named snapshots the one whose tile
        table is named. What is read of it has to be checked by ``check_contents``.

        Raises
        ------
        SnapshotExpiredError
            If the generation was dropped since.
        RequestError
            If tile tables of several generations are named.
        """
        if self.time_ms is not None:
            return generations.active_at(self.lake, view.name, self.time_ms) or current(view)
        records = generations.load(self.lake, view.name) if self._named else []
        named = [r for r in records if r.table in (self._named or ())]
        if len(named) > 1:
            tables = ", ".join(record.table for record in named)
            raise RequestError(
                f"as_of names the tables {tables} of one feature view, {view.name!r}; name the "
                "one of the generation to read"
            )
        return named[0] if named else current(view)

    def feature_view(
        self, view: CompiledView, current: Callable[[CompiledView], GenerationRecord]
    ) -> tuple[GenerationRecord, Pin, Pin]:
        """Return the generation of a view, its tiles, and the events that they contain.

        Events that its job has not read yet are in neither, and counted in ``not_included``.

        Raises
        ------
        UnfilledError
            If the tiles were not computed yet, or not by the requested time.
        GenerationError, SnapshotExpiredError, RequestError
            As ``generation`` and ``pin``.
        """
        record, table = self.generation(view, current), view.source.table
        if self._named is not None:
            tiles_pin = self.pin(record.table)
            named_pin = self._named_for.get((table, record.table))
            if named_pin is None or named_pin.ref is None:
                return record, tiles_pin, self.pin(table)
            self._used.setdefault(table, named_pin)
            return record, tiles_pin, Pin.of(table, pinned(self.lake, table, named_pin.ref))
        for _ in range(_ATTEMPTS):
            reached = position(self.lake, record)
            tiles = self._found(record.table)
            if position(self.lake, record) == reached:
                break
        newest = self._found(table)
        self._check_filled(record, tiles, newest)
        events = newest
        if newest is not None:
            events = consumed_events(self.lake, record, tiles, newest, table)
        self.not_included[view.name] = appended_after(self.lake, table, events, newest)
        return record, Pin.of(record.table, tiles), Pin.of(table, events)

    def tiles(
        self, view: CompiledView, current: Callable[[CompiledView], GenerationRecord]
    ) -> tuple[GenerationRecord, Pin]:
        """Return the generation of a view and its tiles, for a read that needs no events."""
        record, table = self.generation(view, current), view.source.table
        pin = self.pin(record.table)
        if self._named is None and (self.time_ms is None or pin.snapshot_id is None):
            tiles, newest = self._found(record.table), self._found(table)
            self._check_filled(record, tiles, newest)
            self.not_included[view.name] = not_consumed(self.lake, record, tiles, newest, table)
        return record, pin

    def _check_filled(
        self, record: GenerationRecord, tiles: Snapshot | None, events: Snapshot | None
    ) -> None:
        """Raise UnfilledError if tiles are absent because they were not computed by then."""
        if self.time_ms is None:
            if events is not None:
                check_filled(self.lake, record)
            return
        if tiles is not None or (events is None and record.job is None):
            return
        check_filled(self.lake, record)
        empty = record.backfilled and record.backfill_snapshot is None
        if not empty and latest_snapshot(self.lake, record.table) is not None:
            raise unfilled(
                record,
                f"none of its tiles had been committed by {self.time_ms} ms; use a later time",
            )

    def done(self) -> None:
        """Raise RequestError for a named table that is not read."""
        for table in self._named or ():
            if table not in self._used:
                raise RequestError(
                    f"as_of names a snapshot of table {table!r}, which this read does not need; "
                    f"it reads: {', '.join(self._used)}"
                )

    def _check_dropped(self) -> None:
        """Raise SnapshotExpiredError for a named table that was dropped."""
        for table in self._named or ():
            removals = () if self.lake.exists(table) else table_history.removals(self.lake, table)
            if removals:
                raise SnapshotExpiredError(
                    f"as_of names a snapshot of table {table!r}, which was {removals[-1].how} at "
                    f"{removals[-1].until_ms} ms: what was read before cannot be read again. Use "
                    "a later time"
                )

    def _found(self, table: str) -> Snapshot | None:
        """Return the newest snapshot, or the one of the requested time."""
        if self.time_ms is None:
            return latest_snapshot(self.lake, table)
        return snapshot_as_of(self.lake, table, self.time_ms)

    def _pinned(self, table: str) -> Pin:
        if self._named is None:
            return Pin.of(table, self._found(table))
        self._check_dropped()
        named = self._named.get(table)
        if named is None:
            raise RequestError(
                f"as_of names snapshots of {', '.join(self._named) or 'no table'}, but this read "
                f"also needs one of {table!r}; name it, or pass a time"
            )
        if named.ref is None:
            return named
        return Pin.of(table, pinned(self.lake, table, named.ref))


def check_contents(view: CompiledView, record: GenerationRecord, partials: Collection[str]) -> None:
    """Raise GenerationError unless these partials are in the tiles of a generation.

    They are where it was created for this definition, or for one with the same events and the
    same partials.
    """
    if record.fingerprint == view.fingerprint:
        return
    wanted = {name: view.tile_contents[name] for name in ("", *sorted(partials))}
    other = [name for name, content in wanted.items() if record.contents.get(name) != content]
    if not other:
        return
    difference = f"partials {', '.join(other)}" if other[0] else "events, keys or tile length"
    raise GenerationError(
        f"feature view {view.name!r}: generation {record.generation}, which this read needs "
        f"({record.table}), was created for a definition with other {difference}. Read it with "
        "that definition, request only features that both have, or pass a later time"
    )
