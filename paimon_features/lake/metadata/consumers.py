"""Consumers: named readers that prevent the expiry of snapshots.

A consumer retains the next snapshot that its reader needs, and all later ones. It is a file of
the table, so that Flink's maintenance respects it too.
"""

from __future__ import annotations

import json
import time

from paimon_features.core.errors import TableError, unknown_name
from paimon_features.core.types.schema import NAME
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata.snapshots import earliest_snapshot_id, expired, snapshot_ids

__all__ = [
    "advance_consumer",
    "consumers",
    "delete_consumer",
    "earliest_snapshot_id",
    "following",
    "register_consumer",
    "reset_consumer",
]

_ATTEMPTS = 8


def register_consumer(lake: Lake, name: str, consumer: str, next_snapshot: int) -> None:
    """Retain ``next_snapshot`` and all later ones; repeated calls move it, also backwards.

    ``next_snapshot`` may be the next one to be committed (the newest id + 1).

    Raises
    ------
    SnapshotExpiredError
        If it has expired: checked after the consumer is registered, so that it cannot expire
        in between. The registration is reverted then.
    """
    before = _held(lake, name, _checked(consumer))
    _write(lake, name, consumer, next_snapshot)
    ids = snapshot_ids(lake, name)
    if next_snapshot not in ids and next_snapshot != (ids[-1] + 1 if ids else 1):
        if before is None:
            delete_consumer(lake, name, consumer)
        else:
            _write(lake, name, consumer, before)
        raise expired(lake, name, next_snapshot)


def advance_consumer(lake: Lake, name: str, consumer: str, next_snapshot: int) -> None:
    """Release the snapshots before ``next_snapshot``; never moves backwards.

    Raises
    ------
    TableError
        If the consumer does not exist: it was deleted, so snapshots may have expired.
    """
    held = _held(lake, name, _checked(consumer))
    if held is None:
        problem = unknown_name("consumer", consumer, consumers(lake, name), f"table {name!r}")
        raise TableError(f"{problem}. Register it again, and check which snapshots still exist")
    if next_snapshot > held:
        _write(lake, name, consumer, next_snapshot)


def delete_consumer(lake: Lake, name: str, consumer: str) -> None:
    """Delete a consumer; does nothing if it does not exist."""
    lake.table(name).consumer_manager().delete_consumer(_checked(consumer))


def consumers(lake: Lake, name: str) -> dict[str, int]:
    """Return all consumers of a table with the first snapshot that each retains."""
    ids = lake.table(name).consumer_manager().list_all_ids()
    held = {consumer: _held(lake, name, consumer) for consumer in ids}
    return {consumer: first for consumer, first in held.items() if first is not None}


def following(lake: Lake, name: str, consumer: str) -> int | None:
    """Return the first snapshot that one consumer retains, None if it does not exist."""
    return _held(lake, name, _checked(consumer))


def reset_consumer(lake: Lake, name: str, consumer: str, next_snapshot: int) -> None:
    """Set the snapshot of an existing consumer without checks, for rollbacks."""
    _write(lake, name, _checked(consumer), next_snapshot)


def _held(lake: Lake, name: str, consumer: str) -> int | None:
    """Return the first snapshot that a consumer retains, None if it does not exist.

    Flink writes the file in place: an incomplete one is read again, and one left empty by a
    killed writer counts as retaining everything.
    """
    lake.table(name)  # an unknown table is an error, not a table without consumers
    path = _path(lake, name, consumer)
    for attempt in range(_ATTEMPTS):
        try:
            return int(json.loads(lake.storage.read_text(path))["nextSnapshot"])
        except FileNotFoundError:
            return None
        except ValueError:
            time.sleep(0.01 * attempt)
    return earliest_snapshot_id(lake, name) or 1


def _path(lake: Lake, name: str, consumer: str) -> str:
    return f"{lake.path(name)}/consumer/consumer-{consumer}"


def _write(lake: Lake, name: str, consumer: str, next_snapshot: int) -> None:
    """Replace a consumer's file atomically, which pypaimon does not.

    A partial file of a killed process would block every expiry of the table and every start
    under that name.
    """
    lake.storage.write_json(_path(lake, name, consumer), {"nextSnapshot": next_snapshot})


def _checked(consumer: str) -> str:
    if not NAME.fullmatch(consumer.replace("-", "_")):
        raise TableError(f"consumer {consumer!r}: expected lower-case letters, digits, '-' and '_'")
    return consumer
