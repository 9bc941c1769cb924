"""The point-in-time join as SQL text: rows JOIN tiles, and rows JOIN events at the windows' edges.

SQL knows no windows here. Each row comes with the bounds that NumPy made of them (``Rows`` of
``history_rows``), and is answered by partials, which the client finishes as those of the local
join. So the join itself is a second, independent one, and what windows mean stands in one place.

::

    row 7     entity | low high | start_0 end_0 | start_1 end_0 | day_0 | tile_0 from_0 until_0
                       ^ any tile ^ tiles of window 0             ^ cut   ^ raw events of span 0

    tiles     row 7, ref | newest | partials of window 0 | partials of window 1
    edges     row 7, span 0 | partials of the events

Days that no window of a row cuts are merged first, once for all rows, so that a row meets at most
the days of its windows and the tiles of a few of them.

What decays is brought to a common time, ``ref``, before it is added. Far from it a weight would
be zero, so there is a ``ref`` every ``BLOCK_HALF_LIVES`` half-lives back from the row, and a line
of tiles for each: the client brings them together, like tiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from paimon_features.aggregates import EVENT_TIME_MAX, Merge, Partial
from paimon_features.definitions import CompiledFeature, CompiledView
from paimon_features.expressions import DELIMITER
from paimon_features.flink.sql.tiling import event_sql, hint_sql, tile_start_sql, verdict_sql
from paimon_features.offline.joins.result_builder import by_window
from paimon_features.offline.joins.window_edges import WindowEdges
from paimon_features.schema import DataType, Int32, Int64, String
from paimon_features.tables.ddl import literal, quote
from paimon_features.tables.specs import EVENT_DAY, TILE_DAY, TILE_START
from paimon_features.windows import DAY_MS, Window

CHUNK, ROW, REF, NEWEST, SPAN = "chunk", "row_id", "ref_ms", "newest", "span"
LOW, HIGH = "low", "high"
BLOCK_HALF_LIVES = 400
"""2^-400 is the least weight that is given; a tile's own partials go down to 2^-500."""
BYTES_SEPARATOR = "\u0100"
"""Between bytes that are written as the characters U+0000 to U+00FF."""
MAX_DAY_RANGES = 16
"""Conditions nest in what Flink sends to its tasks: a few hundred overflow the stack."""

_ENTERS = 1


@dataclass(frozen=True)
class JoinLayout:
    """Which columns the three tables have for some features of a view."""

    view: CompiledView
    features: tuple[CompiledFeature, ...]

    @cached_property
    def windows(self) -> dict[Window, list[CompiledFeature]]:
        """The windows that are asked for, in order, with their features."""
        return by_window(self.features)

    @cached_property
    def partials(self) -> tuple[Partial, ...]:
        """What is needed of the view's partials, for any window."""
        needed = {EVENT_TIME_MAX.name}.union(*(f.partials for f in self.features))
        return tuple(p for p in self.view.partials if p.name in needed)

    def partials_of(self, window: Window) -> list[tuple[int, Partial]]:
        """The partials that a window needs, and their numbers."""
        names = {EVENT_TIME_MAX.name}.union(*(f.partials for f in self.windows[window]))
        return [(number, p) for number, p in enumerate(self.partials) if p.name in names]

    @cached_property
    def spans(self) -> WindowEdges:
        """Which spans of raw events there are: those of no rows."""
        none = np.zeros(0, np.int64)
        return WindowEdges(self.view, self.windows, none, none)

    @cached_property
    def ends(self) -> dict[tuple[int, int], Window]:
        """A window for each way to end; most end alike."""
        found: dict[tuple[int, int], Window] = {}
        for window in self.windows:
            found.setdefault(end_of(window), window)
        return found

    @cached_property
    def block_ms(self) -> int | None:
        """How far apart two times are that decay counts from; None where nothing decays."""
        lives = [p.half_life_ms for p in self.partials if p.half_life_ms is not None]
        return BLOCK_HALF_LIVES * min(lives) if lives else None

    @cached_property
    def by_days(self) -> bool:
        """Whether days that no window cuts are merged first, so that a row meets a day and not
        all of its tiles. Decay has to reach over a day for that."""
        long = self.view.longest_ms is None or self.view.longest_ms > 2 * DAY_MS
        decays = self.block_ms is not None and self.block_ms < DAY_MS
        return long and not decays and self.view.tile_ms < DAY_MS

    @cached_property
    def cut_by(self) -> list[str]:
        """The columns of times that may cut a day: what lies in that day is told by its tiles."""
        if not self.by_days:
            return []
        starts = [f"start_{i}" for i, w in enumerate(self.windows) if w.start_step_ms % DAY_MS]
        ends = [f"end_{i}" for i, (_, step) in enumerate(self.ends) if step % DAY_MS]
        return [HIGH, *ends, *starts]

    # -- columns -------------------------------------------------------------------------

    @property
    def rows_columns(self) -> dict[str, DataType]:
        """Of the rows: where they are from, keys, bounds of windows and of spans."""
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
        """Of what tiles give: of each row, and each time that decay counts from."""
        columns: dict[str, DataType] = {CHUNK: Int32, ROW: Int64, REF: Int64, NEWEST: Int64}
        for i, window in enumerate(self.windows):
            columns.update({f"w{i}_{n}": gathered(p) for n, p in self.partials_of(window)})
        return columns

    @property
    def edges_columns(self) -> dict[str, DataType]:
        """Of what raw events give: of each row and span."""
        columns: dict[str, DataType] = {CHUNK: Int32, ROW: Int64, SPAN: Int32}
        columns.update({f"p{n}": gathered(p) for n, p in enumerate(self.partials)})
        return columns


def end_of(window: Window) -> tuple[int, int]:
    """Windows that are equal in this end alike."""
    return window.offset_ms, window.end_step_ms


def gathered(partial: Partial) -> DataType:
    """The type in which a partial comes back: bytes as text, several of them in one."""
    return String if partial.merge is Merge.REGISTERS else partial.type


def tiles_sql(
    layout: JoinLayout,
    rows: str,
    target: str,
    tiles: str,
    pin: Mapping[str, str],
    days: tuple[int, int],
) -> str:
    """The statement that merges, for each row and window, the tiles that lie in it whole.

    ``pin`` are the options that choose the snapshot of the table ``tiles``, ``days`` the first
    and the last of its days that can matter.
    """
    source = _tiles(layout, tiles, pin, days)
    if not layout.by_days:
        on = [f"t.`__start` >= a.{LOW}", f"t.`__start` < a.{HIGH}"]
        return f"INSERT INTO {quote(target)}\n{_merged(layout, quote(rows), source, on)}"
    cut = range(len(layout.cut_by))
    day_of = " ".join(f"WHEN {i} THEN day_{i}" for i in cut)
    cut_days = (
        f"(SELECT *, CASE n {day_of} END AS `__cut` FROM {quote(rows)}, "
        f"(VALUES {', '.join(f'({i})' for i in cut)}) AS days(n)\n"
        # most days are cut by several windows; one that is told before is null
        f"    WHERE CASE n {day_of} END IS NOT NULL)"
    )
    on = [f"t.{quote(TILE_DAY)} = a.`__cut`"]
    on += [f"t.`__start` >= a.{LOW}", f"t.`__start` < a.{HIGH}"]
    within = _merged(layout, cut_days, source, on)
    on = [f"t.`__end` > a.{LOW}", f"t.`__end` <= a.{HIGH}"]
    on += [f"(a.day_{i} IS NULL OR t.{quote(TILE_DAY)} <> a.day_{i})" for i in cut]
    whole = _merged(layout, quote(rows), _whole_days(layout, source), on)
    return f"INSERT INTO {quote(target)}\n{within}\nUNION ALL\n{whole}"


def _tiles(layout: JoinLayout, table: str, pin: Mapping[str, str], days: tuple[int, int]) -> str:
    """The tiles of some days, from when to when, and their partials."""
    start = quote(TILE_START)
    columns = [quote(key) for key in layout.view.keys]
    columns += [quote(TILE_DAY), f"{start} AS `__start`"]
    columns.append(f"{start} + {layout.view.tile_ms} AS `__end`")
    columns += [f"{text_sql(p, quote(p.name))} AS p{n}" for n, p in enumerate(layout.partials)]
    return (
        f"(SELECT {', '.join(columns)}\n    FROM {quote(table)} {hint_sql(pin)}\n"
        f"    WHERE {quote(TILE_DAY)} BETWEEN {days[0]} AND {days[1]})"
    )


def _whole_days(layout: JoinLayout, tiles: str) -> str:
    """The same of days: the tiles of each, merged; what decays counts from the day's end."""
    day = f"CAST({quote(TILE_DAY)} AS BIGINT)"
    by = ", ".join([*(quote(key) for key in layout.view.keys), quote(TILE_DAY)])
    columns = [by, f"{day} * {DAY_MS} AS `__start`", f"({day} + 1) * {DAY_MS} AS `__end`"]
    for n, partial in enumerate(layout.partials):
        value = _decayed(partial, f"p{n}", "`__end`", f"({day} + 1) * {DAY_MS}")
        columns.append(f"{merge_sql(partial, value)} AS p{n}")
    return f"(SELECT {', '.join(columns)}\n    FROM {tiles}\n    GROUP BY {by})"


def _merged(layout: JoinLayout, rows: str, tiles: str, on: Sequence[str]) -> str:
    """The query that merges, for each row and window, of ``tiles`` (or days) what is in it."""
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
    """A partial that counts from ``end``, brought to a later time; one that decays not as it is."""
    if partial.half_life_ms is None:
        return value
    age = f"CAST({end} - ({later}) AS DOUBLE) / {float(partial.half_life_ms)!r}E0"
    return f"{value} * POWER(2E0, {age})"


def edges_sql(
    layout: JoinLayout, rows: str, target: str, pin: Mapping[str, str], days: Sequence[int] | None
) -> str:
    """The statement that merges, for each row and span, the raw events in it.

    They become partials by the expressions of the tile job, and enter by its rules. ``days`` are
    those whose events can matter, ascending; None where the events table has no days.
    """
    view = layout.view
    time = quote(view.source.event_time)
    used = {view.source.event_time, *view.keys}
    used.update(*(view.expressions[p.name].columns for p in layout.partials))
    used.update(*(rule.condition.columns for rule in view.skip_rules))
    used.update(() if view.where is None else view.where.columns)
    columns = [quote(column) for column in view.source.schema if column in used]
    keys = ", ".join(f"k{i}" for i in range(len(view.keys)))
    numbers = range(len(layout.spans.found))
    bounds = ", ".join(
        f"CASE n {' '.join(f'WHEN {i} THEN {name}_{i}' for i in numbers)} END AS `__{name}`"
        for name in ("tile", "from", "until")
    )
    # the rows are read once, however many spans there are
    spans = (
        f"SELECT {CHUNK}, {ROW}, n AS {SPAN}, {keys}, {bounds}\n"
        f"    FROM {quote(rows)}, (VALUES {', '.join(f'({i})' for i in numbers)}) AS spans(n)"
    )
    events = (
        f"SELECT {', '.join(columns)}, {tile_start_sql(view)} AS `__tile`\n"
        f"    FROM {quote(view.source.table)} {hint_sql(pin)}{_of_days(days)}"
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
    """SQL of the aggregate that merges a partial; lists and sketches are only joined."""
    if partial.merge in (Merge.SUM, Merge.DECAYED_SUM):
        return f"SUM({value})"
    if partial.merge in (Merge.MIN, Merge.MAX):
        return f"{partial.merge.name}({value})"
    if partial.merge is Merge.REGISTERS:
        return f"LISTAGG({value}, {literal(BYTES_SEPARATOR)})"
    return f"LISTAGG({value}, {literal(DELIMITER)})"


def text_sql(partial: Partial, value: str) -> str:
    """SQL of a partial in the type in which it is gathered."""
    if partial.merge is Merge.REGISTERS:
        return f"DECODE({value}, 'ISO-8859-1')"
    return value


def _of_days(days: Sequence[int] | None) -> str:
    if days is None:
        return ""
    ranges = day_ranges(days, MAX_DAY_RANGES)
    terms = " OR ".join(f"{quote(EVENT_DAY)} BETWEEN {low} AND {high}" for low, high in ranges)
    return f"\n    WHERE {terms}"


def day_ranges(days: Sequence[int], limit: int) -> list[tuple[int, int]]:
    """At most so many ranges that hold all the days (ascending), and few others.

    >>> day_ranges([1, 2, 3, 7, 9], 2)
    [(1, 3), (7, 9)]
    """
    gaps = sorted((b - a, i) for i, (a, b) in enumerate(pairwise(days), 1) if b - a > 1)
    cuts = sorted(i for _, i in gaps[max(len(gaps) - limit + 1, 0) :])
    return [(days[a], days[b - 1]) for a, b in pairwise([0, *cuts, len(days)])]


def _list(columns: Sequence[str]) -> str:
    return ",\n  ".join(columns)
