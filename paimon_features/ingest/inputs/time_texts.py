"""Texts of times in given formats, and the order of day and month that they show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.process.closeable import Closeable
from paimon_features.core.types.schema import Timestamp
from paimon_features.ingest.cells.text_values import text_values
from paimon_features.lake.duckdb_engine import DuckDBEngine

_COMPACT = {"%Y%m%d": 8, "%Y%m%d%H%M": 12, "%Y%m%d%H%M%S": 14}
"""Formats without separators, which match texts of one length only."""
_NAIVE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[ Tt][0-9:.]+)?$"
"""Times of RFC 3339 without an offset."""
_MICROSECONDS = pa.timestamp("us")


class TimeTexts(Closeable):
    """Parses texts of times by DuckDB, whose ``strptime`` refuses a 31st of February.

    ``%f`` is a fraction of any length, or none; finer digits than microseconds are dropped.
    """

    def __init__(self, zone: str = "UTC") -> None:
        self.zone = zone
        self._engine: DuckDBEngine | None = None

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()

    def parse(self, cells: pa.Array, form: str, *, is_day: bool = False) -> pa.Array:
        """Return ``timestamp[us]`` in UTC, null where a text is not of this form.

        ``is_day``: days, which are of no zone; a text with a time of day is none.
        """
        rows = pa.table({"n": np.arange(len(cells)), "t": cells.cast(pa.string())})
        result = self._query(
            rows,
            f"SELECT n, CAST({_parsed(form)} AS TIMESTAMP) AS v, length(trim(t)) AS l "
            "FROM __texts ORDER BY n",
        )
        values = result.column("v").combine_chunks()
        bad = pc.less(pc.year(values), 1000 if "%Y" in form else 1)
        if form in _COMPACT:
            bad = pc.or_(bad, pc.not_equal(result.column("l").combine_chunks(), _COMPACT[form]))
        if is_day:
            bad = pc.or_(bad, pc.not_equal(pc.floor_temporal(values, unit="day"), values))
        values = pc.if_else(pc.fill_null(bad, False), pa.scalar(None, values.type), values)
        if form.endswith("%z") or is_day:
            return values
        return in_zone(values, self.zone)

    def matching(self, cells: pa.Array, forms: Sequence[str]) -> list[str]:
        """Return the forms of which at least one text is, without a closer look."""
        counts = ", ".join(f"count({_parsed(f)}) AS c{n}" for n, f in enumerate(forms))
        rows = pa.table({"t": cells.cast(pa.string())})
        result = self._query(rows, f"SELECT {counts} FROM __texts")
        return [form for n, form in enumerate(forms) if result.column(n)[0].as_py()]

    def _query(self, rows: pa.Table, query: str) -> pa.Table:
        if self._engine is None:
            self._engine = DuckDBEngine(threads=1)
        self._engine.add("__texts", rows)
        return self._engine.table(query, "times")


def _parsed(form: str) -> str:
    """Return SQL of the time of the text ``t``."""
    text = "trim(t)"
    if form.endswith("%z"):
        text = f"regexp_replace({text}, '[zZ]$', '+00:00')"
    forms = [form]
    if "%f" in form:
        text = f"regexp_replace({text}, '([.,][0-9]{{6}})[0-9]+', '\\1')"
        forms += [form.replace(f"{mark}%f", "") for mark in ".," if f"{mark}%f" in form]
    tried = [f"try_strptime({text}, '{f.replace(chr(39), chr(39) * 2)}')" for f in forms]
    return tried[0] if len(tried) == 1 else f"coalesce({', '.join(tried)})"


def naive_times(cells: pa.Array) -> pa.Array:
    """Return the times of texts of RFC 3339 without an offset, ``timestamp[us]``.

    Null for all others.
    """
    bare = pc.utf8_trim_whitespace(cells)
    naive = pc.match_substring_regex(bare, _NAIVE)
    converted = text_values(pc.if_else(naive, bare, pa.scalar(None, pa.string())), Timestamp)
    return converted.values.cast(_MICROSECONDS)


def in_zone(cells: pa.Array, zone: str) -> pa.Array:
    """Return local times in UTC: of an hour that occurs twice the first, of one that does not
    exist the
    moment after it."""
    if zone == "UTC":
        return cells
    aware = pc.assume_timezone(cells, zone, ambiguous="earliest", nonexistent="latest")
    return aware.view(pa.timestamp(cells.type.unit))


def swapped(form: str) -> str | None:
    """Return the format with day and month in the other order, None if they cannot be confused.

    >>> swapped("%d/%m/%Y %H:%M"), swapped("%Y%m%d"), swapped("%d %b %Y")
    ('%m/%d/%Y %H:%M', None, None)
    """
    if form in _COMPACT or "%d" not in form or "%m" not in form:
        return None
    return form.replace("%d", "\0").replace("%m", "%d").replace("\0", "%m")


class DateOrders:
    """What the texts of one column of one file show about its formats.

    A text that only one format reads is evidence for that format. Formats with evidence are in use,
    the given ones and those with day and month swapped; a text that two of them read differently
    is not certain. Until ``decide`` the first given format is believed.
    """

    def __init__(self, forms: Sequence[str]) -> None:
        self.given = tuple(dict.fromkeys(forms))
        others = [swapped(form) for form in self.given]
        self.others = tuple(
            dict.fromkeys(f for f in others if f is not None and f not in self.given)
        )
        self._evidence: set[str] = set()
        self._is_doubted = False
        self._used: tuple[str, ...] = self.given[:1]
        self._decided = False

    @property
    def changed(self) -> bool:
        """Return True if the evidence is against what was assumed, for texts that can be read
        twice."""
        against = self._evidence - {self.given[0]}
        has_others = not self._evidence.isdisjoint(self.others)
        return not self._decided and (has_others or (self._is_doubted and bool(against)))

    def decide(self) -> None:
        """Use the formats with evidence."""
        used = tuple(f for f in (*self.given, *self.others) if f in self._evidence)
        self._used, self._decided = used or self._used, True

    def parse(self, parser: TimeTexts, cells: pa.Array, is_day: bool) -> tuple[pa.Array, pa.Array]:
        """Return times, null where a text is of no given format or not certain, and which are
        not."""
        ticks: dict[str, Any] = {}
        masks: dict[str, Any] = {}
        failed = np.asarray(cells.is_valid())
        for form in self.given:
            ticks[form], masks[form] = _ticks(parser.parse(cells, form, is_day=is_day))
            failed = failed & ~masks[form]
        for form in self.others:
            if failed.any() or self._decided:
                # until there is evidence, only texts that no given format reads can be some
                tried = cells if self._decided else pc.if_else(pa.array(failed), cells, None)
                ticks[form], masks[form] = _ticks(parser.parse(tried, form, is_day=is_day))
        readings = sum(mask.astype(np.int64) for mask in masks.values())
        for form, mask in masks.items():
            if (mask & (readings == 1)).any():
                self._evidence.add(form)
        self._is_doubted |= bool((readings > 1).any())
        used = [form for form in masks if form in self._used]
        doubtful = np.zeros(len(cells), np.bool_)
        for number, form in enumerate(used):
            for other in used[number + 1 :]:
                doubtful |= masks[form] & masks[other] & (ticks[form] != ticks[other])
        chosen_ticks = np.zeros(len(cells), np.int64)
        decided = np.zeros(len(cells), np.bool_)
        for form in (*(f for f in used if f in self.given), *self.given):
            fresh = masks[form] & ~decided
            chosen_ticks = np.where(fresh, ticks[form], chosen_ticks)
            decided |= fresh
        # a text that only the other order reads is no time in the given one
        doubtful |= failed & (readings > 0)
        times = pa.array(chosen_ticks, pa.int64(), mask=~decided | doubtful).cast(_MICROSECONDS)
        return times, pa.array(doubtful)


def _ticks(times: pa.Array) -> tuple[Any, Any]:
    plain = times.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return plain, np.asarray(times.is_valid())
