"""The point-in-time join as SQL text: rows JOIN tiles, and rows JOIN events at the windows' edges.

The SQL does not evaluate window definitions. Each row is staged with bounds that NumPy computed
(``rows_to_stage`` of ``history_rows``); the result is partials, which the client finishes like
those of
the local join. The join itself is therefore an independent implementation, while window semantics
are defined in one place.

::

    row 7     entity | low high | start_0 end_0 | start_1 end_0 | day_0 | tile_0 from_0 until_0
                       ^ any tile ^ tiles of window 0             ^ cut   ^ raw events of span 0

    tiles     row 7, ref | newest | partials of window 0 | partials of window 1
    edges     row 7, span 0 | partials of the events

The tiles of complete days are merged first, once for all rows, so that a row joins at most the
days of its windows and the tiles of the few days that a window bound cuts.

Decayed partials are rescaled to a common reference time, ``ref``, before they are added. Far from
it a weight would underflow to zero. Therefore there is a ``ref`` every ``BLOCK_HALF_LIVES``
half-lives before the row, with one output row for each, which the client merges like tiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from paimon_features.core.expressions import DELIMITER
from paimon_features.core.expressions.flink_floors import first_day_sql
from paimon_features.core.times.partition_days import first_day
from paimon_features.core.types.schema import DataType, Int32, Int64, String
from paimon_features.core.windows import DAY_MS, Window
from paimon_features.definitions import CompiledFeature, CompiledView
from paimon_features.definitions.aggregates import EVENT_TIME_MAX, Merge, Partial
from paimon_features.definitions.event_partials import event_columns
from paimon_features.definitions.finishing import by_window
from paimon_features.lake.ddl import literal, quote
from paimon_features.lake.specs import EVENT_DAY, TILE_DAY, TILE_START
from paimon_features.offline.joins.window_edges import WindowEdges
from paimon_features.tiles.flink.tiling import (
    event_sql,
    hint_sql,
    tile_start_sql,
    verdict_sql,
)

CHUNK, ROW, REF, NEWEST, SPAN = "chunk", "row_id", "ref_ms", "newest", "span"
LOW, HIGH = "low", "high"
BLOCK_HALF_LIVES = 400
"""The smallest weight is 2^-400; partials within a tile have weights down to 2^-500."""
BYTES_SEPARATOR = "\u0100"
"""Separates byte strings that are encoded as the characters U+0000 to U+00FF."""
MAX_DAY_RANGES = 16
"""Flink serializes conditions as nested objects: a few hundred overflow the stack."""

_ENTERS = 1


@dataclass(frozen=True)
class JoinLayout:
    """The columns of the three tables for some features of a view."""

    view: CompiledView
    features: tuple[CompiledFeature, ...]

    @cached_property
    def windows(self) -> dict[Window, list[CompiledFeature]]:
        """The requested windows, in order, with their features."""
        return by_window(self.features)

    @cached_property
    def partials(self) -> tuple[Partial, ...]:
        """The partials of the view that any window needs."""
        needed = {EVENT_TIME_MAX.name}.union(*(f.partials for f in self.features))
        return tuple(p for p in self.view.partials if p.name in needed)

    def partials_of(self, window: Window) -> list[tuple[int, Partial]]:
        """Return the partials that a window needs, with their positions in ``partials``."""
        names = {EVENT_TIME_MAX.name}.union(*(f.partials for f in self.windows[window]))
        return [(number, p) for number, p in enumerate(self.partials) if p.name in names]

    @cached_property
    def spans(self) -> WindowEdges:
        """The spans of raw events, without values for rows."""
        none = np.zeros(0, np.int64)
        return WindowEdges(self.view, self.windows, none, none)

    @cached_property
    def ends(self) -> dict[tuple[int, int], Window]:
        """One window for each distinct end; most windows have the same end."""
        windows_by_end: dict[tuple[int, int], Window] = {}
        for window in self.windows:
            windows_by_end.setdefault(end_of(window), window)
        return windows_by_end

    @cached_property
    def block_ms(self) -> int | None:
        """Milliseconds between two reference times of decay; None if nothing decays."""
        lives = [p.half_life_ms for p in self.partials if p.half_life_ms is not None]
        return BLOCK_HALF_LIVES * min(lives) if lives else None

    @cached_property
    def by_days(self) -> bool:
        """Whether the tiles of complete days are merged first, so that a row joins a day instead of
        all of its tiles. This requires reference times of decay at least a day apart."""
        long = self.view.longest_ms is None or self.view.longest_ms > 2 * DAY_MS
        decays = self.block_ms is not None and self.block_ms < DAY_MS
        return long and not decays and self.view.tile_ms < DAY_MS

    @cached_property
    def cut_by(self) -> list[str]:
        """The columns of times that may cut a day; such a day is read from its tiles."""
        if not self.by_days:
            return []
        starts = [f"start_{i}" for i, w in enumerate(self.windows) if w.start_step_ms % DAY_MS]
        ends = [f"end_{i}" for i, (_, step) in enumerate(self.ends) if step % DAY_MS]
        return [HIGH, *ends, *starts]

    # -- columns -------------------------------------------------------------------------

    @property
    def rows_columns(self) -> dict[str, DataType]:
        """Columns of the rows: position, keys, bounds of windows and of spans."""
        columns: dict[str, DataType] = {CHUNK: Int32, ROW: Int64}
        columns.update({f"k{i}": kind for i, kind in enumerate(self.view.keys.values())})
        columns.update({LOW: Int64, HIGH: Int64})
        columns.update({f"start_{i}": Int64 for i in range(len(self.windows))})
        columns.update({f"end_{i}": Int64 for i in range(len(self.ends))})
        columns.update({f"day_{i}": Int32 for i in range(len(self.cut_by))})
        for i in range(len(self.spans.found)):
            columns.update({f"tile_{i}": Int64, f"from_{i}": Int64, f"until_{i}": Int64})
        return columns

    @property
    def tiles_columns(self) -> dict[str, DataType]:
        """Columns of the result from tiles, for each row and reference time of decay."""
        columns: dict[str, DataType] = {CHUNK: Int32, ROW: Int64, REF: Int64, NEWEST: Int64}
        for i, window in enumerate(self.windows):
            columns.update({f"w{i}_{n}": gathered(p) for n, p in self.partials_of(window)})
        return columns

    @property
    def edges_columns(self) -> dict[str, DataType]:
        """Columns of the result from raw events, for each row and span."""
        columns: dict[str, DataType] = {CHUNK: Int32, ROW: Int64, SPAN: Int32}
        columns.update({f"p{n}": gathered(p) for n, p in enumerate(self.partials)})
        return columns


def end_of(window: Window) -> tuple[int, int]:
    """Return what determines the end of a window, for grouping."""
    return window.offset_ms, window.end_step_ms


def gathered(partial: Partial) -> DataType:
    """Return the column type of a gathered partial: several byte strings are encoded in one
    string."""
    return String if partial.merge is Merge.REGISTERS else partial.type


def tiles_sql(
    layout: JoinLayout,
    rows: str,
    target: str,
    tiles: str,
    pin: Mapping[str, str],
    days: tuple[int, int],
    partition_days: int = 1,
) -> str:
    """Return the statement that merges, for each row and window, the tiles completely inside it.

    ``pin`` are the options that select the snapshot of the table ``tiles``, whose partitions
    contain ``partition_days``; ``days`` are the first and the last relevant day, inclusive.
    """
    source = _tiles(layout, tiles, pin, days, partition_days)
    if not layout.by_days:
        on = [f"t.`__start` >= a.{LOW}", f"t.`__start` < a.{HIGH}"]
        return f"INSERT INTO {quote(target)}\n{_merged(layout, quote(rows), source, on)}"
    cut = range(len(layout.cut_by))
    day_of = " ".join(f"WHEN {i} THEN day_{i}" for i in cut)
    cut_days = (
        f"(SELECT *, CASE n {day_of} END AS `__cut` FROM {quote(rows)}, "
        f"(VALUES {', '.join(f'({i})' for i in cut)}) AS days(n)\n"
        # most days are cut by several windows; a repeated day is null
        f"    WHERE CASE n {day_of} END IS NOT NULL)"
    )
    on = ["t.`__day` = a.`__cut`"]
    on += [f"t.`__start` >= a.{LOW}", f"t.`__start` < a.{HIGH}"]
    within = _merged(layout, cut_days, source, on)
    on = [f"t.`__end` > a.{LOW}", f"t.`__end` <= a.{HIGH}"]
    on += [f"(a.day_{i} IS NULL OR t.`__day` <> a.day_{i})" for i in cut]
    whole = _merged(layout, quote(rows), _whole_days(layout, source), on)
    return f"INSERT INTO {quote(target)}\n{within}\nUNION ALL\n{whole}"


def _tiles(
    layout: JoinLayout,
    table: str,
    pin: Mapping[str, str],
    days: tuple[int, int],
    partition_days: int,
) -> str:
    """Return the query for the tiles of some days: day, start, end and partials."""
    start, partition = quote(TILE_START), quote(TILE_DAY)
    day = partition if partition_days == 1 else first_day_sql(start)
    columns = [quote(key) for key in layout.view.keys]
    columns += [f"{day} AS `__day`", f"{start} AS `__start`"]
    columns.append(f"{start} + {layout.view.tile_ms} AS `__end`")
    columns += [f"{text_sql(p, quote(p.name))} AS p{n}" for n, p in enumerate(layout.partials)]
    return (
        f"(SELECT {', '.join(columns)}\n    FROM {quote(table)} {hint_sql(pin)}\n"
        f"    WHERE {partition} BETWEEN {first_day(days[0], partition_days)} AND {days[1]})"
    )


def _whole_days(layout: JoinLayout, tiles: str) -> str:
    """Return the same for days: the merged tiles of each, decayed to the end of the day."""
    day = "CAST(`__day` AS BIGINT)"
    by = ", ".join([*(quote(key) for key in layout.view.keys), "`__day`"])
    columns = [by, f"{day} * {DAY_MS} AS `__start`", f"({day} + 1) * {DAY_MS} AS `__end`"]
    for n, partial in enumerate(layout.partials):
        value = _decayed(partial, f"p{n}", "`__end`", f"({day} + 1) * {DAY_MS}")
        columns.append(f"{merge_sql(partial, value)} AS p{n}")
    return f"(SELECT {', '.join(columns)}\n    FROM {tiles}\n    GROUP BY {by})"


def _merged(layout: JoinLayout, rows: str, tiles: str, on: Sequence[str]) -> str:
    """Return the query that merges, for each row and window, the ``tiles`` (or days) inside it."""
    ref = "CAST(0 AS BIGINT)"
    if layout.block_ms is not None:
        ref = f"a.{HIGH} - (a.{HIGH} - t.`__end`) / {layout.block_ms} * {layout.block_ms}"
    newest = [p.name for p in layout.partials].index(EVENT_TIME_MAX.name)
    columns = [f"a.{CHUNK}", f"a.{ROW}", f"{ref} AS {REF}", f"t.p{newest} AS {NEWEST}"]
    merged = [CHUNK, ROW, REF, f"MAX({NEWEST})"]
    ends = list(layout.ends)
    for i, window in enumerate(layout.windows):
        end = f"a.end_{ends.index(end_of(window))}"
        inside = f"t.`__start` >= a.start_{i} AND t.`__start` < {end}"
        for n, partial in layout.partials_of(window):
            value = _decayed(partial, f"t.p{n}", "t.`__end`", ref)
            columns.append(f"CASE WHEN {inside} THEN {value} END AS w{i}_{n}")
            merged.append(merge_sql(partial, f"w{i}_{n}"))
    keys = [f"t.{quote(key)} = a.k{i}" for i, key in enumerate(layout.view.keys)]
    return (
        f"SELECT {_list(merged)}\nFROM (\n  SELECT {_list(columns)}\n"
        f"  FROM {rows} a\n  JOIN {tiles} t\n  ON {' AND '.join([*keys, *on])}\n)\n"
        f"GROUP BY {CHUNK}, {ROW}, {REF}"
    )


def _decayed(partial: Partial, value: str, end: str, later: str) -> str:
    """Rescale a partial decayed to ``end`` to a later time; others are unchanged."""
    if partial.half_life_ms is None:
        return value
    age = f"CAST({end} - ({later}) AS DOUBLE) / {float(partial.half_life_ms)!r}E0"
    return f"{value} * POWER(2E0, {age})"


def edges_sql(
    layout: JoinLayout,
    rows: str,
    target: str,
    pin: Mapping[str, str],
    days: Sequence[int] | None,
    partition_days: int = 1,
) -> str:
    """Return the statement that merges, for each row and span, the raw events in it.

    Partials are computed with the expressions of the tile job, from the events that its rules
    accept. ``days`` are the relevant days, ascending; None if the events table has no day column.
    Its partitions contain at most ``partition_days``.
    """
    view = layout.view
    time = quote(view.source.event_time)
    columns = [quote(column) for column in event_columns(view, layout.partials)]
    keys = ", ".join(f"k{i}" for i in range(len(view.keys)))
    numbers = range(len(layout.spans.found))
    bounds = ", ".join(
        f"CASE n {' '.join(f'WHEN {i} THEN {name}_{i}' for i in numbers)} END AS `__{name}`"
        for name in ("tile", "from", "until")
    )
    # the rows are read once for any number of spans
    spans = (
        f"SELECT {CHUNK}, {ROW}, n AS {SPAN}, {keys}, {bounds}\n"
        f"    FROM {quote(rows)}, (VALUES {', '.join(f'({i})' for i in numbers)}) AS spans(n)"
    )
    events = (
        f"SELECT {', '.join(columns)}, {tile_start_sql(view)} AS `__tile`\n"
        f"    FROM {quote(view.source.table)} {hint_sql(pin)}{_of_days(days, partition_days)}"
    )
    on = [f"e.{quote(key)} = s.k{i}" for i, key in enumerate(view.keys)]
    on += ["s.`__until` > s.`__from`", "e.`__tile` = s.`__tile`"]
    on += [f"e.{time} >= s.`__from`", f"e.{time} < s.`__until`"]
    joined = (
        f"SELECT s.{CHUNK} AS `__chunk`, s.{ROW} AS `__row`, s.{SPAN} AS `__span`, "
        f"{', '.join(f'e.{column}' for column in columns)}\n"
        f"    FROM ({spans}) s\n    JOIN ({events}) e\n    ON {' AND '.join(on)}"
    )
    partials = [
        f"{text_sql(p, event_sql(view, view.expressions[p.name]))} AS p{n}"
        for n, p in enumerate(layout.partials)
    ]
    by = "`__chunk`, `__row`, `__span`"
    merged = [merge_sql(p, f"p{n}") for n, p in enumerate(layout.partials)]
    return (
        f"INSERT INTO {quote(target)}\nSELECT {by}, {_list(merged)}\nFROM (\n"
        f"  SELECT {by}, {_list(partials)}\n  FROM ({joined})\n"
        f"  WHERE {verdict_sql(view)} = {_ENTERS}\n)\nGROUP BY {by}"
    )


def merge_sql(partial: Partial, value: str) -> str:
    """Return the SQL aggregate that merges a partial; lists and sketches are only concatenated."""
    if partial.merge in (Merge.SUM, Merge.DECAYED_SUM):
        return f"SUM({value})"
    if partial.merge in (Merge.MIN, Merge.MAX):
        return f"{partial.merge.name}({value})"
    if partial.merge is Merge.REGISTERS:
        return f"LISTAGG({value}, {literal(BYTES_SEPARATOR)})"
    return f"LISTAGG({value}, {literal(DELIMITER)})"


def text_sql(partial: Partial, value: str) -> str:
    """Return the SQL of a partial in the type of its gathered column."""
    if partial.merge is Merge.REGISTERS:
        return f"DECODE({value}, 'ISO-8859-1')"
    return value


def _of_days(days: Sequence[int] | None, partition_days: int) -> str:
    if days is None:
        return ""
    # older partitions contain fewer days, and those of a longer one may begin anywhere in it
    wanted = sorted({first_day(day, partition_days) for day in days})
    ranges = [
        (low, high + partition_days - 1)
        for low, high in day_ranges(wanted, MAX_DAY_RANGES, partition_days)
    ]
    terms = " OR ".join(f"{quote(EVENT_DAY)} BETWEEN {low} AND {high}" for low, high in ranges)
    return f"\n    WHERE {terms}"


def day_ranges(days: Sequence[int], limit: int, step: int = 1) -> list[tuple[int, int]]:
    """Return at most this many ranges that contain all the days (ascending) and few others.

    Days that are no more than ``step`` apart are in one range.

    >>> day_ranges([1, 2, 3, 7, 9], 2)
    [(1, 3), (7, 9)]
    """
    gaps = sorted((b - a, i) for i, (a, b) in enumerate(pairwise(days), 1) if b - a > step)
    cuts = sorted(i for _, i in gaps[max(len(gaps) - limit + 1, 0) :])
    return [(days[a], days[b - 1]) for a, b in pairwise([0, *cuts, len(days)])]


def _list(columns: Sequence[str]) -> str:
    return ",\n  ".join(columns)
