"""Duplicates by their event id: of the rows with one id within the horizon, one is the event.

::

    arrivals of id 7    |-------- horizon --------|
                        e    d        d                        e
                        kept rejected rejected                 kept: absent for a full horizon

Kept rows of one id are at least a horizon apart, and a row whose id has not arrived for a horizon
is kept. Arrival is the time at which ingest reads the row (``ingest_time_ms``): it only grows, so
no arrival is late. A retraction (Bool column) has its event's id and counts separately.

A batch of files looks the ids up in the events table, which contains those of files, streams and
Python writers. A stream keeps the last arrival of each id as state; Flink expires an id that has
been absent for a horizon (state TTL), which does not change the result.
"""

from __future__ import annotations

from paimon_features.core.windows import format_duration
from paimon_features.definitions import EventSource
from paimon_features.ingest.flink.scan_sql import once, row_text
from paimon_features.lake.ddl import literal, quote
from paimon_features.lake.events.event_ids import identity_columns
from paimon_features.lake.events.rejects import DUPLICATE
from paimon_features.lake.specs import INGEST_TIME_MS

_ARRIVED, _EARLIER = "arrived", "earlier"


def duplicate_views(
    source: EventSource, judged: str, rows: str, time_ms: int | None, clock: str
) -> list[tuple[str, str]]:
    """Return views (name, query) from the view ``judged`` to the view ``rows``, in which duplicates
    have a problem. ``time_ms`` is the time of a batch; None for a stream, whose clock is ``clock``.
    """
    assert source.dedup_horizon is not None
    horizon = f"within {format_duration(source.horizon_ms or 0)}"
    prefix = f"{DUPLICATE}: column {source.event_id}: "
    got = f"CAST({quote(f'v_{source.event_id}')} AS STRING)"
    problem = f"CONCAT({literal(prefix)}, {got}, {literal(f' came before, {horizon}')})"
    values = ", ".join(quote(f"v_{name}") for name in source.schema)
    views = (
        _of_stream(source, judged, clock) if time_ms is None else _of_batch(source, judged, time_ms)
    )
    last = views[-1][0]
    checked = (
        f"SELECT CASE WHEN `{_EARLIER}` THEN {row_text(source)} END AS `raw`, `origin`, {values}, "
        f"CASE WHEN `{_EARLIER}` THEN {problem} END AS `problem` FROM {quote(last)}"
    )
    bad = f"SELECT `raw`, `origin`, {values}, `problem` FROM {quote(judged)}"
    return [*views, (rows, f"{checked} UNION ALL {bad} WHERE `problem` IS NOT NULL")]


def _of_stream(source: EventSource, judged: str, clock: str) -> list[tuple[str, str]]:
    values = ", ".join(quote(f"v_{name}") for name in source.schema)
    ids = ", ".join(
        quote(f"v_{name}")
        for name in identity_columns(source.event_id or "", source.retraction, source.schema)
    )
    arrivals = (
        f"SELECT `origin`, {values}, {once(clock)} AS `{_ARRIVED}`, PROCTIME() AS `proc` "
        f"FROM {quote(judged)} WHERE `problem` IS NULL"
    )
    # null for the first arrival, and after Flink has expired the previous one
    before = f"LAG(`{_ARRIVED}`) OVER (PARTITION BY {ids} ORDER BY `proc`)"
    seen = (
        f"SELECT `origin`, {values}, "
        f"COALESCE(`{_ARRIVED}` - {before} < {source.horizon_ms}, FALSE) AS `{_EARLIER}` "
        "FROM `ingest_arrivals`"
    )
    return [("ingest_arrivals", arrivals), ("ingest_seen", seen)]


def _of_batch(source: EventSource, judged: str, time_ms: int) -> list[tuple[str, str]]:
    names = list(source.schema)
    values = ", ".join(quote(f"v_{name}") for name in names)
    columns = identity_columns(source.event_id or "", source.retraction, source.schema)
    ids = ", ".join(quote(f"v_{name}") for name in columns)
    fresh = f"SELECT `origin`, {values}, 1 AS `fresh` FROM {quote(judged)} WHERE `problem` IS NULL"
    # the known ids go through the same sort as rows without other columns: half the work of a
    # subsequent join. The rows of this run are excluded, for a run that is finished after a crash
    nothing = ", ".join(
        quote(name) if name in columns else f"CAST(NULL AS {kind.flink})"
        for name, kind in source.schema.items()
    )
    earlier_ids = (
        f"SELECT CAST(NULL AS STRING), {nothing}, 0 FROM {quote(source.table)} "
        f"WHERE {quote(INGEST_TIME_MS)} > {time_ms - (source.horizon_ms or 0)} "
        f"AND {quote(INGEST_TIME_MS)} <> {time_ms}"
    )
    # by all columns of a row: a run that is finished after a crash must choose the same one
    order = [source.event_time, *(name for name in names if name != source.event_time)]
    sortable = [
        quote(f"v_{name}")
        for name in order
        if source.schema[name].text != "bytes" and name not in columns
    ]
    numbered = (
        f"SELECT `origin`, {values}, `fresh`, ROW_NUMBER() OVER (PARTITION BY {ids} "
        f"ORDER BY {', '.join(['`fresh`', *sortable, '`origin`'])}) AS `number` "
        "FROM `ingest_arrivals`"
    )
    seen = (
        f"SELECT `origin`, {values}, `number` > 1 AS `{_EARLIER}` FROM `ingest_numbered` "
        "WHERE `fresh` = 1"
    )
    return [
        ("ingest_arrivals", f"{fresh} UNION ALL {earlier_ids}"),
        ("ingest_numbered", numbered),
        ("ingest_seen", seen),
    ]
