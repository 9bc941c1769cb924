"""What was removed from a table's history: by dropping the table, or by rolling it back.

Paimon numbers the snapshots of a table that was created again from 1, and those after a rollback
from there on. So a number, or a time, does not say which table it belongs to: this record does.
It is stored next to the tables, where it survives them, also in a warehouse that is only read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from paimon_features.core.documents.checksummed_json import add_checksum, stored_document
from paimon_features.core.documents.typed_json import mapping, typed
from paimon_features.core.errors import DamagedFileError
from paimon_features.lake.storage import Storage


@dataclass(frozen=True, slots=True)
class Removal:
    """Snapshots that a table once had.

    ``how`` is "dropped", "emptied", "replaced" or "rolled back to snapshot N". They were what the
    table contained from ``from_ms`` (inclusive) to ``until_ms`` (exclusive), UTC ms; ``first_id``
    and ``last_id`` (both inclusive) are their numbers, which later snapshots use again.
    """

    how: str
    from_ms: int
    until_ms: int
    first_id: int
    last_id: int

    def covers(self, time_ms: int) -> bool:
        """Return True if what the table contained at that time was removed."""
        return self.from_ms <= time_ms < self.until_ms

    def reuses(self, snapshot_id: int) -> bool:
        """Return True if a later snapshot can have this number."""
        return self.first_id <= snapshot_id <= self.last_id


def load(storage: Storage, path: str) -> tuple[Removal, ...]:
    """Return all removals in a record, oldest first; empty if there is no record.

    Raises
    ------
    DamagedFileError
        If the file is not what was written.
    """
    document = stored_document(storage, path)
    try:
        return () if document is None else tuple(_parsed(document.value))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DamagedFileError(
            f"{path} is damaged ({error}); restore it from a copy. It records which snapshots of "
            "the table were removed; without it an old snapshot number can name other rows"
        ) from error


def append(storage: Storage, path: str, removal: Removal) -> None:
    """Add a removal to a record. The caller holds the table's lock."""
    earlier = load(storage, path)
    storage.make_folder(path.rpartition("/")[0])
    document = {"removals": [asdict(entry) for entry in (*earlier, removal)]}
    # the number of removals is the number of writes
    storage.write_json(path, add_checksum(document, path.rpartition("/")[2], len(earlier) + 1))


def _parsed(document: Any) -> Iterator[Removal]:
    for fields in mapping(document, "removals")["removals"]:
        yield typed(Removal, fields)
