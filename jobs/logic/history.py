"""The point-in-time join as SQL text: rows JOIN tiles, and rows JOIN events at the windows' edges.

SQL knows no windows here. Each row comes with the bounds that NumPy made of them (``Rows`` of
``history_rows``), and is answered by partials, which the client finishes as those of the local
join. So the join itself is a second, independent one, and what windows mean stands in one place.

::

    row 7     entity | low high | start_0 end_0 | start_1 end_0 | tile_0 from_0 until_0
                       ^ any tile ^ tiles of window 0             ^ raw events of span 0

    tiles     row 7, ref | newest | partials of window 0 | partials of window 1
    edges     row 7, span 0 | partials of the events

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

from jobs.logic.tiling import event_sql, fate_sql, hint_sql, tile_start_sql
from paimon_features.aggregates import EVENT_TIME_MAX, Merge, Partial
from paimon_features.definitions import CompiledFeature, CompiledView
from paimon_features.expressions import DELIMITER
from paimon_features.offline.answers import by_window
from paimon_features.offline.spans import WindowSpans
from paimon_features.schema import DataType, Int32, Int64, String
from paimon_features.tables.ddl import literal, quote
from paimon_features.tables.specs import EVENT_DAY, TILE_DAY, TILE_START
from paimon_features.windows import Window

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
class Layout:
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
    def spans(self) -> WindowSpans:
        """Which spans of raw events there are: those of no rows."""
        none = np.zeros(0, np.int64)
        return WindowSpans(self.view, self.windows, none, none)

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

    # -- columns -------------------------------------------------------------------------

    @property
    def rows_columns(self) -> dict[str, DataType]:
        """Of the rows: where they are from, keys, bounds of windows and of spans."""
        columns: dict[str, DataType] = {CHUNK: Int32, ROW: Int64}
        columns.update({f"k{i}": kind for i, kind in enumerate(self.view.keys.values())})
        columns.update({LOW: Int64, HIGH: Int64})
        columns.update({f"start_{i}": Int64 for i in range(len(self.windows))})
        columns.update({f"end_{i}": Int64 for i in range(len(self.ends))})
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
    layout: Layout,
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
    view, tile_end = layout.view, f"(t.{quote(TILE_START)} + {layout.view.tile_ms})"
    ref = "CAST(0 AS BIGINT)"
    if layout.block_ms is not None:
        back = f"(a.{HIGH} - {tile_end}) / {layout.block_ms}"
        ref = f"a.{HIGH} - {back} * {layout.block_ms}"
    columns = [f"a.{CHUNK}", f"a.{ROW}", f"{ref} AS {REF}"]
    columns.append(f"t.{quote(EVENT_TIME_MAX.name)} AS {NEWEST}")
    merged = [f"MAX({NEWEST})"]
    ends = list(layout.ends)
    for i, window in enumerate(layout.windows):
        start, end = f"a.start_{i}", f"a.end_{ends.index(end_of(window))}"
        inside = f"t.{quote(TILE_START)} >= {start} AND t.{quote(TILE_START)} < {end}"
        for n, partial in layout.partials_of(window):
            value = f"t.{quote(partial.name)}"
            if partial.half_life_ms is not None:
                age = f"CAST({tile_end} - ({ref}) AS DOUBLE) / {float(partial.half_life_ms)!r}E0"
                value = f"{value} * POWER(2E0, {age})"
            columns.append(f"CASE WHEN {inside} THEN {value} END AS w{i}_{n}")
            merged.append(merge_sql(partial, f"w{i}_{n}"))
    on = [f"t.{quote(key)} = a.k{i}" for i, key in enumerate(view.keys)]
    on += [f"t.{quote(TILE_START)} >= a.{LOW}", f"t.{quote(TILE_START)} < a.{HIGH}"]
    first, last = days
    return _insert(
        target,
        [CHUNK, ROW, REF, *merged],
        f"SELECT {_list(columns)}\n  FROM {quote(rows)} a JOIN {quote(tiles)} {hint_sql(pin)} t\n"
        f"    ON {' AND '.join(on)}\n"
        f"  WHERE t.{quote(TILE_DAY)} BETWEEN {first} AND {last}",
        f"{CHUNK}, {ROW}, {REF}",
    )


def edges_sql(
    layout: Layout, rows: str, target: str, pin: Mapping[str, str], days: Sequence[int] | None
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
        f"{event_sql(view, view.expressions[p.name])} AS p{n}"
        for n, p in enumerate(layout.partials)
    ]
    return _insert(
        target,
        ["`__chunk`", "`__row`", "`__span`"]
        + [merge_sql(p, f"p{n}") for n, p in enumerate(layout.partials)],
        f"SELECT `__chunk`, `__row`, `__span`, {_list(partials)}\n"
        f"  FROM ({joined})\n  WHERE {fate_sql(view)} = {_ENTERS}",
        "`__chunk`, `__row`, `__span`",
    )


def merge_sql(partial: Partial, value: str) -> str:
    """SQL of the aggregate that merges a partial; lists and sketches are only joined."""
    if partial.merge in (Merge.SUM, Merge.DECAYED_SUM):
        return f"SUM({value})"
    if partial.merge in (Merge.MIN, Merge.MAX):
        return f"{partial.merge.name}({value})"
    if partial.merge is Merge.REGISTERS:
        return f"LISTAGG(DECODE({value}, 'ISO-8859-1'), {literal(BYTES_SEPARATOR)})"
    return f"LISTAGG({value}, {literal(DELIMITER)})"


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


def _insert(target: str, merged: Sequence[str], source: str, by: str) -> str:
    return (
        f"INSERT INTO {quote(target)}\nSELECT {_list(merged)}\nFROM (\n  {source}\n)\nGROUP BY {by}"
    )


def _list(columns: Sequence[str]) -> str:
    return ",\n  ".join(columns)
