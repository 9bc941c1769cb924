"""Duplicates by their event id: of the rows with one id within the horizon, one is the event.

::

    arrivals of id 7    |-------- horizon --------|
                        e    d        d                        e
                        kept aside    aside                    kept: away for a whole horizon

What is kept of an id lies at least a horizon apart, and a row whose id has not arrived for a
horizon is kept. Arrival is when ingest reads the row (``ingest_time_ms``): it grows, so there is
nothing late about it. A withdrawal (Bool retraction) has its event's id and is told apart.

A batch of files looks the ids up in the events table, which files, streams and Python writers
fill alike. A stream remembers by itself when each id came last; Flink forgets an id that has
been away for a horizon (state TTL), and then the comparison would have said the same.
"""

from __future__ import annotations

from paimon_features.definitions import EventSource
from paimon_features.flink.sql.scans import once, row_text
from paimon_features.tables.ddl import literal, quote
from paimon_features.tables.duplicates import identity_columns
from paimon_features.tables.rejects import DUPLICATE
from paimon_features.tables.specs import INGEST_TIME_MS
from paimon_features.windows import format_duration

_ARRIVED, _EARLIER = "arrived", "earlier"


def duplicate_views(
    source: EventSource, judged: str, rows: str, time_ms: int | None, clock: str
) -> list[tuple[str, str]]:
    """Views (name, query) from the view ``judged`` to the view ``rows``, where duplicates have a
    problem, too. ``time_ms`` is the time of a batch, None of a stream, whose clock is ``clock``.
    """
    assert source.dedup_horizon is not None
    horizon = f"within {format_duration(source.horizon_ms or 0)}"
    found = f"{DUPLICATE}: column {source.event_id}: "
    got = f"CAST({quote(f'v_{source.event_id}')} AS STRING)"
    problem = f"CONCAT({literal(found)}, {got}, {literal(f' came before, {horizon}')})"
    values = ", ".join(quote(f"v_{name}") for name in source.schema)
    views = (
        _of_stream(source, judged, clock) if time_ms is None else _of_batch(source, judged, time_ms)
    )
    last = views[-1][0]
    told = (
        f"SELECT CASE WHEN `{_EARLIER}` THEN {row_text(source)} END AS `raw`, `origin`, {values}, "
        f"CASE WHEN `{_EARLIER}` THEN {problem} END AS `problem` FROM {quote(last)}"
    )
    bad = f"SELECT `raw`, `origin`, {values}, `problem` FROM {quote(judged)}"
    return [*views, (rows, f"{told} UNION ALL {bad} WHERE `problem` IS NOT NULL")]


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
    # null for the first arrival, and once Flink has forgotten the one before
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
    # the ids that have entered, as rows of nothing else, go through the same sort: half the work
    # of a join behind it. The rows of this very run, where it is finished after a crash, are not
    # among them
    nothing = ", ".join(
        quote(name) if name in columns else f"CAST(NULL AS {kind.flink})"
        for name, kind in source.schema.items()
    )
    known = (
        f"SELECT CAST(NULL AS STRING), {nothing}, 0 FROM {quote(source.table)} "
        f"WHERE {quote(INGEST_TIME_MS)} > {time_ms - (source.horizon_ms or 0)} "
        f"AND {quote(INGEST_TIME_MS)} <> {time_ms}"
    )
    # by everything that is known of a row: a run that is finished has to choose the same one
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
        ("ingest_arrivals", f"{fresh} UNION ALL {known}"),
        ("ingest_numbered", numbered),
        ("ingest_seen", seen),
    ]
