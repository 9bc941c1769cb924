"""Which snapshot of each table is read: chosen once, at the start of a read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paimon_features.errors import RequestError, SnapshotExpiredError
from paimon_features.tables import Lake, latest_snapshot, snapshot
from paimon_features.tables.snapshots import snapshot_as_of


@dataclass(frozen=True, slots=True)
class Pin:
    """One table at one snapshot; ``snapshot_id`` is None where it had no commit yet.

    ``incarnation`` distinguishes snapshots that share a number after a rollback (0 for events).
    """

    table: str
    snapshot_id: int | None
    incarnation: int = 0

    def describe(self) -> str:
        """The table and its snapshot, for people.

        >>> Pin("tiles_spend_g1", 7).describe(), Pin("events_spend", None).describe()
        ('tiles_spend_g1, snapshot 7', 'events_spend, no snapshot yet')
        """
        at = "no snapshot yet" if self.snapshot_id is None else f"snapshot {self.snapshot_id}"
        return f"{self.table}, {at}"

    def to_document(self) -> dict[str, object]:
        """Canonical JSON form."""
        return {
            "table": self.table,
            "snapshot_id": self.snapshot_id,
            "incarnation": self.incarnation,
        }


AsOf = int | Mapping[str, int | None] | Sequence[Pin] | None
"""What a read may see: data committed by a time (UTC ms, inclusive), exactly these snapshots by
table, the pins of an earlier read, or the newest commits (None)."""


class Pinner:
    """Chooses a snapshot for each requested table, by one rule.

    ``done`` checks that every named table was requested.
    """

    def __init__(self, lake: Lake, as_of: AsOf) -> None:
        self.lake = lake
        self.time_ms = as_of if isinstance(as_of, int) else None
        self._named: dict[str, Pin | None] | None = None
        self._used: dict[str, Pin] = {}
        if isinstance(as_of, Mapping):
            self._named = {table: Pin(table, number, -1) for table, number in as_of.items()}
        elif as_of is not None and not isinstance(as_of, int):
            self._named = {pin.table: pin for pin in as_of}

    def pin(self, table: str, incarnation: int = 0) -> Pin:
        """The snapshot of a table; repeated calls return the same one.

        Raises
        ------
        SnapshotExpiredError
            If it has expired, or a rollback has reused its number.
        RequestError
            If snapshots were named and this table is not among them.
        """
        if table not in self._used:
            self._used[table] = Pin(table, self._snapshot(table, incarnation), incarnation)
        return self._used[table]

    def done(self) -> None:
        """Raise RequestError for a named table that is not read."""
        for table in self._named or ():
            if table not in self._used:
                raise RequestError(
                    f"as_of names a snapshot of table {table!r}, which this read does not need; "
                    f"it reads: {', '.join(self._used)}"
                )

    def _snapshot(self, table: str, incarnation: int) -> int | None:
        if self._named is None:
            found = (
                latest_snapshot(self.lake, table)
                if self.time_ms is None
                else snapshot_as_of(self.lake, table, self.time_ms)
            )
            return None if found is None else found.id
        named = self._named.get(table)
        if named is None:
            raise RequestError(
                f"as_of names snapshots of {', '.join(self._named) or 'no table'}, but this read "
                f"also needs one of {table!r}; name it, or pass a time"
            )
        if named.incarnation not in (-1, incarnation):
            raise SnapshotExpiredError(
                f"table {table!r} was rolled back since: snapshot {named.snapshot_id} of "
                f"incarnation {named.incarnation} no longer exists, the table is now in "
                f"incarnation {incarnation}; read a current snapshot"
            )
        if named.snapshot_id is not None:
            snapshot(self.lake, table, named.snapshot_id)  # raises where it is gone
        return named.snapshot_id
