"""The interface of an aggregate: partials of each event, merged by the lake, finished at read time.

An event becomes one row of partials. Rows with the same key are merged column by column, by
Paimon in the tile table and by ``fold`` everywhere else; ``finish`` turns the merged partials
of a window into the feature's value. Merging is associative and commutative, so the value does
not depend on which tiles and levels a window was merged from, nor on their order.
"""

from __future__ import annotations

import enum
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from paimon_features.core.columns.column import Column
from paimon_features.core.configuration.arguments import check_arguments, is_list
from paimon_features.core.errors import DefinitionError, unknown_name
from paimon_features.core.expressions import parse
from paimon_features.core.times.durations import optional_ms
from paimon_features.core.types.array_types import Bools
from paimon_features.core.types.schema import MAX_FEATURE_NAME, DataType, Int64, check_name
from paimon_features.core.windows import (
    Length,
    format_duration,
    format_length,
    is_duration,
    parse_duration,
    parse_length,
)

EVENT_TIME = "__event_time"
"""Name of the event time in expressions (Int64, ms)."""
TILE_END = "__tile_end"
"""Name of the end of the event's tile in expressions (exclusive, ms)."""

INTEGER_BOUND = 2**63 // 10**9
"""Default bound of summed integers (scaled units): a billion of them fit into a BIGINT."""
FLOAT_BOUND = 1e290
"""Default bound of summed floats: 10^18 of them stay finite."""


class Merge(enum.Enum):
    """How two values of a partial are merged; all of these skip nulls.

    ``TOP``, ``BOTTOM`` and ``COUNTS`` are lists of items (``expressions.items``), which the lake
    only concatenates, separated by commas. Everywhere else ``TOP`` keeps the ``limit`` greatest
    items, ``BOTTOM`` the least, and ``COUNTS`` one of each with its count. ``REGISTERS`` are
    sketches of sets (``aggregates.registers``), merged by union.
    """

    SUM = "sum"
    MIN = "min"
    MAX = "max"
    DECAYED_SUM = "decayed_sum"
    TOP = "top"
    BOTTOM = "bottom"
    COUNTS = "counts"
    REGISTERS = "registers"

    @property
    def paimon(self) -> str:
        """Paimon's aggregate function for the column (within a tile a decayed sum is a sum)."""
        return _PAIMON[self]

    @property
    def retractable(self) -> bool:
        """Whether merging the negated partial of an event retracts the event."""
        return self in (Merge.SUM, Merge.DECAYED_SUM)


_PAIMON = {
    Merge.SUM: "sum", Merge.MIN: "min", Merge.MAX: "max", Merge.DECAYED_SUM: "sum",
    Merge.TOP: "listagg", Merge.BOTTOM: "listagg", Merge.COUNTS: "listagg",
    Merge.REGISTERS: "rbm32",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition on the inputs; an event for which it is false does not enter a tile."""

    expression: str
    detail: str


@dataclass(frozen=True, slots=True)
class Partial:
    """One column of the tile table.

    ``expression`` is its value for one event, over the columns of the source, the derived columns,
    ``EVENT_TIME`` and ``TILE_END``. ``type`` is Int64, Float64, String or Bytes. A decayed partial
    with half-life ``h`` contains ``v * 2^((ts - tile_end) / h)``. ``limit`` is how many items a
    merge of ``TOP`` or ``BOTTOM`` keeps; the lake keeps all of them, so that another limit needs no
    other tiles. ``largest`` is the greatest absolute value that the guards let one event add to an
    integer sum; ``events_that_fit`` follows from it.
    """

    name: str
    type: DataType
    merge: Merge
    expression: str
    half_life_ms: int | None = None
    guards: tuple[Guard, ...] = ()
    limit: int | None = None
    largest: int | None = None

    @property
    def events_that_fit(self) -> int | None:
        """The number of events whose sum cannot overflow 64 bits, whatever their values.

        None where no limit is known.
        """
        return None if self.largest is None else (2**63 - 1) // max(self.largest, 1)

    @property
    def is_exact(self) -> bool:
        """Whether the merged value is independent of the order of merging (float sums are not)."""
        summed = self.merge in (Merge.SUM, Merge.DECAYED_SUM)
        return not (summed and self.type.is_float)


EVENT_TIME_MAX = Partial("p_event_time_max", Int64, Merge.MAX, EVENT_TIME)
"""In every tile: the newest event time, for freshness, expiry, and as the origin of decay."""
ROWS = Partial("p_rows", Int64, Merge.SUM, "1")
"""In every tile: the number of events."""

HIDDEN_PARTIALS = (EVENT_TIME_MAX, ROWS)


@dataclass(frozen=True, slots=True)
class Finished:
    """Values of one feature, and the rows whose value is too ill-conditioned to be returned."""

    column: Column
    ill_conditioned: Bools | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """The time and the window for which merged partials are finished.

    ``as_of_ms`` is the time of the read (UTC ms), one for all rows or one per row; a hop window
    rounds it down first (``Window.read_time``). ``since_ms``, shape ``(rows,)``, is the time
    from the end of the newest tile in the window to ``as_of_ms`` (negative while that tile is
    open): by how much a decayed sum still has to decay. ``window_ms`` is the window's nominal
    length, None for a lifetime, for a calendar unit, and for an aggregate without ``by_length``.
    """

    as_of_ms: npt.NDArray[np.int64] | int
    since_ms: npt.NDArray[np.int64]
    window_ms: int | None = None


Scope = Mapping[str, DataType]
"""Types of all columns that an aggregate can use: those of the source and the derived ones."""


@dataclass(frozen=True)
class Aggregate(ABC):
    """An aggregate of one column over one or more windows.

    ``windows`` are durations ("1h", "30d") or calendar units ("today", "this_week",
    "this_month", "this_year"); ``None`` among them, or no windows at all, means the lifetime.
    ``offset`` is a delay: the windows end that long before the time of the read.
    ``where`` is a condition: events for which it is not true are left out.
    ``name`` replaces the part of the feature's name before the window. ``bound`` is the largest
    absolute input value that may enter a tile; events with larger values go to the side table.
    ``own_event`` decides whether the event of a request (``FeatureService(request=...)``) is
    counted; by default it is, unless the windows have an offset.
    """

    kind: ClassVar[str]
    """First part of the feature's name, for example ``sum``."""
    by_length: ClassVar[bool] = False
    """Whether ``finish`` uses ``Reading.window_ms``. Otherwise windows of several lengths are
    finished in one call, in which it is None."""

    column: str | None = None
    _: KW_ONLY
    windows: Sequence[str | None] | None = None
    where: str | None = None
    name: str | None = None
    bound: float | None = None
    offset: str | None = None
    own_event: bool | None = None
    lengths: tuple[Length, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._check_column(self.column)
        given: tuple[str | None, ...] = (None,) if self.windows is None else ()
        if is_list(self.windows):
            given = tuple(self.windows or ())
        if not given:
            raise DefinitionError(
                f"{self.kind}: windows={self.windows!r}; expected a list of durations and "
                "calendar units such as ['1h', '30d', 'today'], or none for the whole lifetime"
            )
        lengths = tuple(map(parse_length, given))
        if len(set(lengths)) != len(lengths):
            raise DefinitionError(f"{self.kind}: windows={list(given)!r} names a window twice")
        object.__setattr__(self, "windows", given)
        object.__setattr__(self, "lengths", lengths)
        check_arguments(self.kind, self)
        optional_ms("offset", self.offset)
        if self.own_event and self.offset is not None:
            raise DefinitionError(
                f"{self.kind}: own_event=True and offset={self.offset!r} exclude each other: a "
                "window with an offset ends before the time of the event"
            )
        if self.name is not None:
            check_name("feature", self.name, MAX_FEATURE_NAME)

    def _check_column(self, column: object) -> None:
        if column is None or (isinstance(column, str) and not is_duration(column)):
            return
        windows = [column] if isinstance(column, str) else column
        raise DefinitionError(
            f"{self.kind}({column!r}): expected the name of a column; windows are given by "
            f"name: {type(self).__name__}({'' if self.kind == 'count' else '<column>, '}"
            f"windows={windows!r})"
        )

    @property
    def stem(self) -> str:
        """The feature's name without its window."""
        return self._stem() if self.name is None else self.name

    @property
    def offset_ms(self) -> int:
        """The delay in milliseconds; 0 without one."""
        return 0 if self.offset is None else parse_duration(self.offset)

    @property
    def counts_own_event(self) -> bool:
        """Whether the event of a request is counted, see ``own_events``."""
        return self.offset is None if self.own_event is None else self.own_event

    def feature_name(self, length: Length) -> str:
        """Return ``<aggregate>_<column>_<window>_offset_<offset>``, without absent parts."""
        offset = f"offset_{format_duration(self.offset_ms)}" if self.offset else None
        return "_".join(filter(None, (self.stem, format_length(length), offset)))

    def _stem(self) -> str:
        return "_".join(part for part in (self.kind, self.column, *self._name_parts()) if part)

    def _name_parts(self) -> tuple[str, ...]:
        return ()

    @abstractmethod
    def partials(self, scope: Scope) -> tuple[Partial, ...]:
        """Return the tile columns that this aggregate needs, in the order ``finish`` takes them.

        Raises
        ------
        DefinitionError
            If the column does not exist or its type does not fit.
        """

    @abstractmethod
    def output_type(self, scope: Scope) -> DataType:
        """Return the type of the finished feature."""

    @abstractmethod
    def finish(self, scope: Scope, merged: Sequence[Column], reading: Reading) -> Finished:
        """Return the feature's values, shape ``(rows,)``, from merged partials of the same shape.

        The partials are as ``fold`` returns them: lists are sorted and no longer than their limit.
        Rows are independent of each other. In an empty window all partials are null; its value does
        not depend on the time of the read and is never ill-conditioned.
        """

    def each(self) -> tuple[Aggregate, ...]:
        """Return one aggregate per feature stem: itself, unless the definition lists several."""
        return (self,)

    def accuracy(self, scope: Scope) -> str:
        """Return how far a value may be from that of the raw events, in words."""
        return "exact"

    def why_not_retractable(self, scope: Scope) -> str | None:
        """Return why events cannot be retracted from this aggregate; None where they can."""
        kept = [p.merge.value for p in self.partials(scope) if not p.merge.retractable]
        if not kept:
            return None
        return f"its tiles are merged by {kept[0]}, from which a value cannot be removed"

    # -- helpers for subclasses ----------------------------------------------------------

    def _partial(
        self,
        stem: str,
        kind: DataType,
        merge: Merge,
        expression: str,
        *,
        half_life_ms: int | None = None,
        guards: tuple[Guard, ...] = (),
        limit: int | None = None,
        largest: int | None = None,
    ) -> Partial:
        """Return a partial whose name identifies its content, so that equal ones are shared."""
        name = f"p_{stem}"
        if self.where is not None:
            name += "_w" + digest(self.where)
            expression = f"CASE WHEN {self.where} THEN {expression} END"
            guards = tuple(map(self._guarded, guards))
        return Partial(name, kind, merge, expression, half_life_ms, guards, limit, largest)

    def _guarded(self, guard: Guard) -> Guard:
        """Return the guard, restricted to the events that the aggregate takes."""
        if self.where is None:
            return guard
        expression = f"NOT COALESCE({self.where}, FALSE) OR {guard.expression}"
        return Guard(expression, guard.detail)

    def _finite_guards(self, scope: Scope, *columns: str | None) -> tuple[Guard, ...]:
        """Return guards for columns whose values are ordered: NaN has no place in an order."""
        floats = [name for name in columns if name is not None and scope[name].is_float]
        return tuple(
            Guard(f"({name} IS NULL OR finite({name}))", f"{name} is not finite") for name in floats
        )

    def _count_partial(self) -> Partial:
        """Return the partial that counts the values that are not null."""
        return self._partial(
            f"count_{self.column}",
            Int64,
            Merge.SUM,
            f"CASE WHEN {self.column} IS NOT NULL THEN 1 ELSE 0 END",
        )

    def _input_type(self, scope: Scope) -> DataType:
        """Return the type of the aggregated column."""
        if self.column is None:
            raise DefinitionError(f"{self.kind} needs a column; available: {', '.join(scope)}")
        if self.column not in scope:
            raise DefinitionError(f"{self.kind}: {unknown_name('column', self.column, scope)}")
        return scope[self.column]

    def _scalar_type(self, scope: Scope, column: str | None = None) -> DataType:
        """Return the type of the aggregated or another column, whose values have an order."""
        if column is not None and column not in scope:
            message = unknown_name("column", column, scope)
            raise DefinitionError(f"{self.kind}({self.column!r}): {message}")
        kind = self._input_type(scope) if column is None else scope[column]
        if not kind.is_scalar:
            raise DefinitionError(
                f"{self.kind}({self.column!r}): a column of {kind!r} has no order"
            )
        return kind

    def _numeric_type(self, scope: Scope) -> DataType:
        kind = self._input_type(scope)
        if not kind.is_numeric:
            raise DefinitionError(
                f"{self.kind}({self.column!r}): the column is {kind!r}; expected a number"
            )
        return kind

    @property
    def conditions(self) -> tuple[str, ...]:
        """Conditions on events; an event for which one overflows is left out."""
        return () if self.where is None else (self.where,)

    def check_where(self, scope: Scope) -> None:
        """Raise DefinitionError if ``where`` is not a condition."""
        if self.where is not None:
            kind = parse(self.where, scope).type
            if kind.text != "bool":
                raise DefinitionError(
                    f"{self.stem}: where={self.where!r} is {kind!r}; expected a condition"
                )


def digest(*texts: str) -> str:
    """Return a short hash of texts, used in the names of partials."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:8]
