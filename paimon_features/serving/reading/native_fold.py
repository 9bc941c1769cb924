"""Windows over records by the native core: from stored bytes to finished features in one call.

A plan of one view is compiled once: where in a cell each partial is, how it is merged, which
windows of it are needed (slots), and how each feature is finished. Windows are borders between
cells, as in ``window_features``, whose results these are, to the bit. Aggregates that the core
cannot finish are finished by themselves from the merged partials; features of texts and lists are
left to ``WindowFeatures``.

What NumPy computes by approximation is never computed a second way: decay has a table of weights by
the number of tiles, made by ``np.exp2``, and what is left to decay at the read is one more call.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from paimon_features.core.columns.column import Column
from paimon_features.core.times.durations import parse_duration
from paimon_features.core.types.array_types import Array, Bools, Floats, Ints
from paimon_features.core.types.schema import Int64
from paimon_features.core.types.statuses import Status
from paimon_features.core.windows import DAY_MS, CalendarUnit, Window, floor_ms
from paimon_features.definitions import CompiledFeature, CompiledView
from paimon_features.definitions.aggregates import (
    Count,
    DecayedCount,
    DecayedMean,
    DecayedSum,
    Max,
    Mean,
    Merge,
    Min,
    Partial,
    Rate,
    Sum,
    TimeSinceFirst,
    TimeSinceLast,
)
from paimon_features.definitions.aggregates.basic import EXACT_FLOAT
from paimon_features.definitions.finishing import FeatureColumn, FinishGroup
from paimon_features.definitions.own_events import OwnEvents
from paimon_features.online.store.codec import RecordLayout
from paimon_features.serving.reading.window_features import (
    Borders,
    Spans,
    borders_of,
    window_spans,
)

if TYPE_CHECKING:
    from paimon_features.core.native import Core

_KNOWN = 64
"""For how many read times borders are cached."""
MAX_TABLE = 1 << 20
"""Greatest number of weights in a table; a longer history is folded by NumPy."""
_FIRST_TABLE = 1 << 10
_HAS_NULL, _TOO_LARGE = 1, 2
_INT64 = 2**63

_MERGES = {
    (Merge.SUM, "int64"): 0,
    (Merge.MIN, "int64"): 1,
    (Merge.MAX, "int64"): 2,
    (Merge.SUM, "float64"): 3,
    (Merge.MIN, "float64"): 4,
    (Merge.MAX, "float64"): 5,
    (Merge.DECAYED_SUM, "float64"): 6,
}
(
    _LEFT, _INT_TOTAL, _FLOAT_TOTAL, _UNITS_TOTAL, _INT_VALUE, _FLOAT_VALUE, _UNITS_VALUE,
    _INT_MEAN, _FLOAT_MEAN, _INT_RATE, _FLOAT_RATE, _DECAYED_TOTAL, _DECAYED_MEAN, _AGE, _AGE_UNITS,
) = range(15)  # fmt: skip


def split_features(
    view: CompiledView, features: Sequence[CompiledFeature]
) -> tuple[list[CompiledFeature], list[CompiledFeature]]:
    """Return the features of which the core folds all partials, and the others."""
    native: list[CompiledFeature] = []
    rest: list[CompiledFeature] = []
    for feature in features:
        partials = [view.partial[name] for name in feature.partials]
        folded = partials and all((p.merge, p.type.text) in _MERGES for p in partials)
        if any(p.merge is Merge.DECAYED_SUM for p in partials):
            # a weight for each tile of a window (of a year, where it has no length)
            length_ms = feature.window_ms or 366 * DAY_MS
            folded = folded and length_ms // view.tile_ms < MAX_TABLE
        (native if folded else rest).append(feature)
    return native, rest


def _operation(view: CompiledView, feature: CompiledFeature) -> tuple[int, int, int]:
    """Return how the core finishes a feature, with its two numbers; LEFT: the aggregate does it.

    Only for the aggregates of this package themselves: a subclass may finish in its own way.
    """
    aggregate, scope = feature.aggregate, view.scope
    kind = type(aggregate)
    if kind is Count:
        return _INT_TOTAL, 0, 0
    if isinstance(aggregate, Sum) and kind is Sum:
        return _of_sum(aggregate, view)
    if isinstance(aggregate, Mean) and kind is Mean:
        scale = aggregate.scale_of(scope)
        return (_FLOAT_MEAN, 0, 0) if scale is None else (_INT_MEAN, 10**scale, 0)
    if isinstance(aggregate, Min | Max) and kind in (Min, Max):
        return _of_extreme(aggregate, view)
    if isinstance(aggregate, DecayedSum | DecayedCount) and kind in (DecayedSum, DecayedCount):
        return _DECAYED_TOTAL, aggregate.half_life_ms, 0
    if kind is DecayedMean:
        return _DECAYED_MEAN, 0, 0
    if isinstance(aggregate, Rate) and kind is Rate:
        return _of_rate(aggregate, view, feature.window_ms)
    if isinstance(aggregate, TimeSinceLast | TimeSinceFirst) and kind in (
        TimeSinceLast,
        TimeSinceFirst,
    ):
        unit = aggregate.unit
        return (_AGE, 0, 0) if unit is None else (_AGE_UNITS, parse_duration(unit), 0)
    return _LEFT, 0, 0


def _of_sum(aggregate: Sum, view: CompiledView) -> tuple[int, int, int]:
    scale = aggregate.scale_of(view.scope)
    if scale is None:
        return _FLOAT_TOTAL, 0, 0
    if aggregate.as_decimal:
        return _LEFT, 0, 0
    if aggregate.output_type(view.scope) is Int64:
        return _INT_TOTAL, 0, 0
    return _UNITS_TOTAL, 10**scale, 0


def _of_extreme(aggregate: Min | Max, view: CompiledView) -> tuple[int, int, int]:
    if not aggregate.is_numeric_in(view.scope):
        return _LEFT, 0, 0
    kind, scale = aggregate.output_type(view.scope), aggregate.scale_of(view.scope)
    if kind is Int64:
        return _INT_VALUE, 0, 0
    if scale is None:
        return _FLOAT_VALUE, 0, 0
    return (_LEFT, 0, 0) if kind.is_decimal else (_UNITS_VALUE, 10**scale, 0)


def _of_rate(aggregate: Rate, view: CompiledView, window_ms: int | None) -> tuple[int, int, int]:
    if window_ms is None:
        return _LEFT, 0, 0
    scale = aggregate.scale_of(view.scope)
    above, below = parse_duration(aggregate.per), window_ms * 10 ** (scale or 0)
    common = math.gcd(above, below)
    above, below = above // common, below // common
    if scale is None:
        return _FLOAT_RATE, struct.unpack("<q", struct.pack("<d", above / below))[0], 0
    return (_INT_RATE, above, below) if max(above, below) <= EXACT_FLOAT else (_LEFT, 0, 0)


@dataclass(frozen=True, slots=True, eq=False)
class _PackedBorders:
    """The borders of all windows and of the horizon, as the core takes them."""

    keys: bytes
    bounds: bytes
    ranges: int


@dataclass(frozen=True, slots=True, eq=False)
class _ReadTime:
    """What follows from the time of a read, and stays the same for some time.

    ``first_ms`` is the start of the view's window that starts first, ``reads_ms`` the read time of
    each window: None where it is that of the read, or if it is for all.
    """

    borders: _PackedBorders
    first_ms: int
    reads_ms: tuple[int | None, ...] | None


class Folded:
    """What the core computed for some rows.

    ``records`` and ``cells`` are how many there are, ``bucket_high_ms`` the greatest of the
    records, and ``flags`` say of each feature whether values are missing or too large.
    """

    __slots__ = (
        "_after", "_exponents", "bucket_high_ms", "cells", "flags", "flat_bytes", "read_ms",
        "records", "words",
    )  # fmt: skip

    def __init__(
        self,
        words: Ints,
        flat: bytearray,
        read_ms: bytes,
        after: int,
        exponents: int,
        done: tuple[int, int, int, bytes],
    ) -> None:
        self.words, self.flat_bytes, self.read_ms = words, flat, read_ms
        self._after, self._exponents = after, exponents
        self.records, self.cells, self.bucket_high_ms, self.flags = done

    @property
    def is_finished(self) -> bool:
        """Whether no feature is left to its aggregate."""
        # of flags that are 0 or HAS_NULL nothing is left
        return not self.flags.strip(b"\0\1")

    @property
    def newest(self) -> Ints:
        """The newest event time of each row before the horizon."""
        newest: Ints = self.words[self._after]
        return newest

    @property
    def snapshots(self) -> Ints:
        """The snapshot in each row's record (NEVER_MS: none)."""
        snapshots: Ints = self.words[self._after + 1]
        return snapshots

    @property
    def of_windows(self) -> Ints:
        """The newest event time of each window and row."""
        return self.words[self._after + 2 + self._exponents :]

    @property
    def codes(self) -> npt.NDArray[np.int8]:
        """The status of each row."""
        return np.frombuffer(self.code_bytes, np.int8)

    @property
    def code_bytes(self) -> bytes:
        """The same as bytes."""
        return bytes(self.flat_bytes[-self.words.shape[1] :])

    @property
    def flat(self) -> npt.NDArray[np.uint8]:
        """Which values and merged partials are there, and the statuses: a row of each."""
        rows = self.words.shape[1]
        return np.frombuffer(self.flat_bytes, np.uint8).reshape(self._after + 1, rows)


class NativeFold:
    """Features of one view as a plan for the core; to be kept. Safe to use from several threads."""

    def __init__(
        self, core: Core, layout: RecordLayout, features: Sequence[CompiledFeature]
    ) -> None:
        view = layout.view
        self._core, self._view = core, view
        self._levels = {feature.window: feature.level for feature in features}
        self._windows = tuple(self._levels)
        place = {window: i for i, window in enumerate(self._windows)}
        operations = {feature.name: _operation(view, feature) for feature in features}
        # decayed totals first: their last factors are one array
        self._features = sorted(features, key=lambda f: operations[f.name][0] != _DECAYED_TOTAL)
        self._decayed = sum(of[0] == _DECAYED_TOTAL for of in operations.values())
        partials: dict[str, int] = {}
        slots: dict[tuple[int, int], int] = {}
        for feature in self._features:
            for name in feature.partials:
                partials.setdefault(name, len(partials))
        # the slots of one partial follow each other
        wanted = sorted(
            {(partials[n], place[f.window]) for f in self._features for n in f.partials}
        )
        slots = {pair: number for number, pair in enumerate(wanted)}
        self._slots = len(slots)
        compiled_partials = [view.partial[name] for name in partials]
        half_lives = {p.half_life_ms: None for p in compiled_partials if p.half_life_ms is not None}
        self._half_lives = list(half_lives)
        self._tables: tuple[Floats, ...] = tuple(
            self._weights(half_life, _FIRST_TABLE) for half_life in self._half_lives
        )
        words = [
            view.tile_ms, len(compiled_partials), len(self._windows), self._slots,
            len(self._features), len(self._half_lives), self._decayed,
        ]  # fmt: skip
        for partial in compiled_partials:
            words += self._partial_words(layout, partial)
        for pair in wanted:
            words += pair
        of_feature: dict[str, list[int]] = {}
        for number, feature in enumerate(self._features):
            at = place[feature.window]
            of_feature[feature.name] = of = [slots[partials[n], at] for n in feature.partials]
            operation, p, q = operations[feature.name]
            second = of[1] if len(of) > 1 else of[0]
            words += [operation, at, of[0], second, p, q, number if number < self._decayed else -1]
        self._layout = layout.words
        self._plan = np.array(words, "<i8").tobytes()
        self._of_feature, self._place = of_feature, place
        self._columns = [(f.name, operations[f.name][0] in _FLOATS) for f in self._features]
        places = {feature.name: i for i, feature in enumerate(self._features)}
        self.in_order = [
            (f.name, places[f.name], self._columns[places[f.name]][1]) for f in features
        ]
        self._partial_types = [view.partial[name].type.text for name in partials]
        self._slot_is_float = [self._partial_types[partial] == "float64" for partial, _ in wanted]
        left = [f for f in self._features if operations[f.name][0] == _LEFT]
        self._left = FinishGroup.of(left, place)
        self._is_left = {feature.name for feature in left}
        self._times = struct.Struct(f"<{len(self._windows)}q")
        self._step_ms = _step_of(view, (*self._windows, *view.starting_first, *view.ending_last))
        self._known: dict[Spans, _PackedBorders] = {}
        self._read_times: dict[tuple[int, bool], _ReadTime] = {}

    def _partial_words(self, layout: RecordLayout, partial: Partial) -> list[int]:
        valid = layout.validity(partial.name)
        at, bit = (-1, 0) if valid is None else (_offset(layout, "valid") + valid[0], valid[1])
        half_life = partial.half_life_ms
        table = -1 if half_life is None else self._half_lives.index(half_life)
        merge = _MERGES[partial.merge, partial.type.text]
        return [_offset(layout, partial.name), merge, at, bit, table]

    def fold(
        self,
        found: Sequence[bytes | None],
        start: int,
        stop: int,
        as_of_ms: int,
        stale: bytes | None,
    ) -> Folded | None:
        """Fold the records ``found[start:stop]`` at ``as_of_ms``; ``stale`` has a code per row.

        None where a record is damaged, or where the history is too long for a table of weights:
        then NumPy's code has to do it, which also has the words of the error.
        """
        view, rows = self._view, stop - start
        horizon_ms = view.horizon(as_of_ms)
        time = self._read_time(as_of_ms, horizon_ms)
        borders, known_from_ms, ttl_from_ms = time.borders, time.first_ms, -_INT64
        if view.ttl_ms is not None:
            ttl_from_ms = horizon_ms - view.ttl_ms
            known_from_ms = min(known_from_ms, ttl_from_ms)
        if time.reads_ms is None:
            read_ms = self._times.pack(*[as_of_ms] * len(self._windows))
        else:
            read_ms = self._times.pack(*[as_of_ms if t is None else t for t in time.reads_ms])
        features, windows = len(self._features), len(self._windows)
        words = np.empty((features + self._slots + 2 + self._decayed + windows, rows), np.int64)
        flat = bytearray((features + self._slots + 1) * rows)
        read = _READ.pack(horizon_ms, ttl_from_ms, known_from_ms, borders.ranges, *_CODES)
        while True:
            tables = self._tables
            done = self._core.fold(
                found, (start, stop), self._layout, self._plan, borders.keys, borders.bounds,
                read_ms, read, words, flat, stale, tables,
            )  # fmt: skip
            if not isinstance(done, int):
                break
            if done > MAX_TABLE:
                return None
            # a new tuple: another thread may be using the old one
            self._tables = tuple(
                self._weights(half_life, 1 << (done - 1).bit_length())
                for half_life in self._half_lives
            )
        if done is None:
            return None
        at, decaying = features + self._slots, self._decayed
        if decaying:
            floats = words.view(np.float64)
            decayed = floats[:decaying]
            # a time long before the newest tile, which the caller of the fold rejects
            with np.errstate(over="ignore", invalid="ignore"):
                np.multiply(decayed, np.exp2(floats[at + 2 : at + 2 + decaying]), out=decayed)
        return Folded(words, flat, read_ms, at, decaying, done)

    @property
    def finishes_all(self) -> bool:
        """Whether no aggregate has to finish a feature itself, unless numbers are too large."""
        return not self._left

    @property
    def newest_at(self) -> int:
        """The place of the newest event times among the words."""
        return len(self._features) + self._slots

    def fold_all(
        self, found: Sequence[bytes | None], start: int, stop: int, as_of_ms: int
    ) -> Folded | None:
        """Return as ``fold``; None also where an aggregate has to finish a feature itself."""
        folded = self.fold(found, start, stop, as_of_ms, None)
        return folded if folded is not None and folded.is_finished else None

    def finished(self, folded: Folded) -> dict[str, Column] | None:
        """Return the features in the order of the request, where the core has finished all of them.

        So it has in most reads. None for the others.
        """
        if not folded.is_finished:
            return None
        words, flags, valid = folded.words, folded.flags, folded.flat.view(np.bool_)
        floats = words.view(np.float64)
        return {
            name: Column(floats[i] if is_float else words[i], valid[i] if flags[i] else None)
            for name, i, is_float in self.in_order
        }

    def values(
        self, folded: Folded, as_of_ms: int, null: Bools | None, own_events: OwnEvents | None = None
    ) -> dict[str, FeatureColumn]:
        """Return the features by name; ``null`` is where the entity is unknown or expired, and
        ``own_events`` are the events of the requests, one per row."""
        words, valid = folded.words, folded.flat.view(np.bool_)
        floats = words.view(np.float64)
        out: dict[str, FeatureColumn] = {}
        too_large: list[CompiledFeature] = []
        for i, feature in enumerate(self._features):
            if own_events is not None and feature.aggregate.counts_own_event:
                continue
            flag = folded.flags[i]
            if flag & _TOO_LARGE:
                if feature.name not in self._is_left:
                    too_large.append(feature)
                continue
            values: Array = floats[i] if self._columns[i][1] else words[i]
            column = Column(values, valid[i] if flag & _HAS_NULL else None)
            out[feature.name] = FeatureColumn(column, None)
        for group in (*self._left, *FinishGroup.of(too_large, self._place)):
            if own_events is None or not group.aggregate.counts_own_event:
                out.update(self._finish(group, folded, as_of_ms, null, None))
        if own_events is not None:
            for group in self._counting_own:
                out.update(self._finish(group, folded, as_of_ms, null, own_events))
        return out

    @cached_property
    def _counting_own(self) -> list[FinishGroup]:
        """The features that count the event of a request, which their aggregates finish."""
        counting = [f for f in self._features if f.aggregate.counts_own_event]
        return FinishGroup.of(counting, self._place)

    def _finish(
        self,
        group: FinishGroup,
        folded: Folded,
        as_of_ms: int,
        null: Bools | None,
        own_events: OwnEvents | None,
    ) -> Iterator[tuple[str, FeatureColumn]]:
        """Let the aggregate finish features from the merged partials."""
        tile_ms, first = self._view.tile_ms, len(self._features)
        # axes: windows, rows
        read_ms = np.frombuffer(folded.read_ms, np.int64)[group.windows][:, None]
        newest_end_ms = floor_ms(folded.of_windows[group.windows], tile_ms) + tile_ms
        columns = []
        for slots in zip(*(self._of_feature[f.name] for f in group.features), strict=True):
            places = [first + slot for slot in slots]
            values: Array = folded.words[places].ravel()
            if self._slot_is_float[slots[0]]:
                values = values.view(np.float64)
            valid = folded.flat[places].ravel().view(np.bool_)
            columns.append(Column(values, None if valid.all() else valid))
        return group.finish(self._view, columns, as_of_ms, read_ms, newest_end_ms, null, own_events)

    def _weights(self, half_life_ms: int, count: int) -> Floats:
        """Return the weight of a cell whose tile ended so many tiles before the newest one."""
        weights: Floats = np.exp2(np.arange(count) * self._view.tile_ms / -half_life_ms)
        return weights

    def _read_time(self, as_of_ms: int, horizon_ms: int) -> _ReadTime:
        """Return what follows from the time of a read: the same within a step, but for its first
        ms."""
        step_ms = self._step_ms
        key = (as_of_ms // step_ms, as_of_ms % step_ms == 0)
        read_time = self._read_times.get(key)
        if read_time is None:
            reads_ms = tuple(
                window.read_time(as_of_ms) if window.kind == "hop" else None
                for window in self._windows
            )
            starts = [window.start(as_of_ms) for window in self._view.starting_first]
            read_time = _ReadTime(
                self._borders(as_of_ms, horizon_ms),
                min(starts),
                None if all(time is None for time in reads_ms) else reads_ms,
            )
            if len(self._read_times) >= _KNOWN:
                self._read_times = {}  # a new one: another thread may be reading the old
            self._read_times[key] = read_time
        return read_time

    def _borders(self, as_of_ms: int, horizon_ms: int) -> _PackedBorders:
        spans = window_spans(self._view, self._windows, as_of_ms, horizon_ms)
        packed = self._known.get(spans)
        if packed is None:
            top = len(self._view.levels_ms) - 1
            levels = [*(self._levels[window] for window in self._windows), top]
            borders: Borders = borders_of(self._view, levels, spans)
            packed = _PackedBorders(
                borders.keys.tobytes(), borders.bounds.tobytes(), borders.bounds.shape[1]
            )
            if len(self._known) >= _KNOWN:
                self._known = {}  # a new one: another thread may be reading the old
            self._known[spans] = packed
        return packed


def _step_of(view: CompiledView, windows: Iterable[Window]) -> int:
    """Return a step between whose multiples (exclusive) no window of a read changes its cells, ms.

    All that windows are computed from are multiples of it. A calendar's are not: then 1.
    """
    step = view.tile_ms
    for window in windows:
        if isinstance(window.length, CalendarUnit):
            return 1
        ends = window.end_step_ms if window.end_step_ms > 1 else 0
        parts = (window.length or 0, window.offset_ms, window.start_step_ms, window.hop_ms, ends)
        step = math.gcd(step, *parts)
    return step


_READ = struct.Struct("<7q")
_CODES = (int(Status.PRESENT), int(Status.EXPIRED), int(Status.MISSING))
_FLOATS = frozenset(range(15)) - {_INT_TOTAL, _INT_VALUE, _AGE}


def _offset(layout: RecordLayout, name: str) -> int:
    fields = layout.cell.fields
    assert fields is not None
    return int(fields[name][1])
