"""The version of a row that a table view reads, by a loop over all versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from paimon_features.definitions import CompiledTable
from paimon_features.lake.specs import INGEST_TIME_MS


def newest_version(
    view: CompiledTable,
    versions: Iterable[Mapping[str, Any]],
    key: Mapping[str, Any],
    as_of_ms: int,
) -> Mapping[str, Any] | None:
    """Return the version that a read at ``as_of_ms`` sees, or None.

    It is valid by then, known by then (a null ``created_time`` is known), and not older than the
    ttl; of these the newest counts, of equal times the one that ranks highest.
    """
    time, created = view.source.event_time, view.source.created_time
    best: Mapping[str, Any] | None = None
    for row in versions:
        if None in key.values() or any(row[name] != value for name, value in key.items()):
            continue
        valid = row[time] <= as_of_ms if view.closed else row[time] < as_of_ms
        known = created is None or row[created] is None or row[created] <= as_of_ms
        if valid and known and (best is None or _rank(view, row) > _rank(view, best)):
            best = row
    if best is not None and view.ttl_ms is not None and best[time] < as_of_ms - view.ttl_ms:
        return None
    return best


def _rank(view: CompiledTable, row: Mapping[str, Any]) -> list[Any]:
    created = view.source.created_time
    names = [view.source.event_time, *([created] if created else []), INGEST_TIME_MS]
    names += [feature.name for feature in view.features]
    return [(row[name] is not None, 0 if row[name] is None else row[name]) for name in names]
