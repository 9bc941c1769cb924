"""Rate, TimeSinceLast, TimeSinceFirst: aggregates that depend on window length or read time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import DefinitionError
from paimon_features.core.times.durations import option_ms, optional_ms
from paimon_features.core.types.schema import DataType, Float64, Int64
from paimon_features.core.windows import format_duration, parse_duration
from paimon_features.definitions.aggregates.base import (
    EVENT_TIME,
    EVENT_TIME_MAX,
    ROWS,
    Aggregate,
    Finished,
    Merge,
    Partial,
    Reading,
    Scope,
)
from paimon_features.definitions.aggregates.basic import FLOAT_SUMS, Numeric, or_zero, rate


@dataclass(frozen=True)
class Rate(Numeric):
    """Events per unit of time, or with a column the sum of its values per unit of time.

    The sum is divided by the window's nominal length (a window may begin up to one hop earlier), so
    that rates over several windows are comparable. 0 for an empty window; lifetimes and calendar
    units have no fixed length and are rejected.

    >>> import paimon_features as pf
    >>> events = [{"amount": 2.0}, {"amount": None}, {"amount": 10.0}]
    >>> pf.evaluate(pf.Rate(per="1h", windows=["1d"]), events)
    0.125
    >>> pf.evaluate(pf.Rate("amount", per="1h", windows=["1d"]), events)
    0.5
    """

    kind: ClassVar[str] = "rate"
    by_length: ClassVar[bool] = True
    per: str = field(default="1h", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        option_ms("per", self.per)
        if not all(isinstance(length, int) for length in self.lengths):
            raise DefinitionError(
                f"rate({self.column!r}): a lifetime and a calendar unit have no length to divide "
                f"by; expected durations, got windows={self.windows!r}"
            )

    def _name_parts(self) -> tuple[str, ...]:
        return ("per", format_duration(parse_duration(self.per)))

    def scale_of(self, scope: Scope) -> int | None:
        return 0 if self.column is None else super().scale_of(scope)

    def partials(self, scope: Scope) -> tuple[Partial, ...]:
        if self.column is not None:
            return (self._value_partial(scope, Merge.SUM, "sum"),)
        return (ROWS if self.where is None else self._partial("rows", Int64, Merge.SUM, "1"),)

    def output_type(self, scope: Scope) -> DataType:
        return Float64

    def finish(self, scope: Scope, merged: Sequence[Column], reading: Reading) -> Finished:
        assert reading.window_ms is not None
        unit = 10 ** (self.scale_of(scope) or 0)
        total = or_zero(merged[0])
        return Finished(Column(rate(total, parse_duration(self.per), reading.window_ms * unit)))

    def accuracy(self, scope: Scope) -> str:
        exact = "the float nearest to the exact value"
        return FLOAT_SUMS if self.scale_of(scope) is None else exact


@dataclass(frozen=True)
class _TimeSince(Aggregate):
    """Shared by TimeSinceLast and TimeSinceFirst."""

    unit: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        optional_ms("unit", self.unit)

    def _time_partial(self, scope: Scope, stem: str, merge: Merge) -> Partial:
        if self.column is None:
            return self._partial(stem, Int64, merge, EVENT_TIME)
        self._input_type(scope)
        seen = f"CASE WHEN {self.column} IS NOT NULL THEN {EVENT_TIME} END"
        return self._partial(f"{stem}_{self.column}", Int64, merge, seen)

    def output_type(self, scope: Scope) -> DataType:
        return Int64 if self.unit is None else Float64

    def finish(self, scope: Scope, merged: Sequence[Column], reading: Reading) -> Finished:
        seen = merged[0].mask
        # online, the open tile may contain events later than the read
        age_ms = np.maximum(np.where(seen, reading.as_of_ms - merged[0].values, 0), 0)
        if self.unit is None:
            return Finished(Column(age_ms, merged[0].valid))
        return Finished(Column(age_ms / parse_duration(self.unit), merged[0].valid))


@dataclass(frozen=True)
class TimeSinceLast(_TimeSince):
    """Time from the newest event, or value that is not null, to the read: ms, or in ``unit``.

    An Int64 of milliseconds, or a Float64 of units (``unit="1d"``). Null for an empty window.

    >>> import paimon_features as pf
    >>> events = [
    ...     {"amount": 2.0, "at_ms": 0},
    ...     {"amount": 5.0, "at_ms": 30_000},
    ...     {"amount": None, "at_ms": 60_000},
    ... ]
    >>> pf.evaluate(pf.TimeSinceLast(), events, as_of_ms=120_000)
    60000
    >>> pf.evaluate(pf.TimeSinceLast("amount", unit="1min"), events, as_of_ms=120_000)
    1.5
    """

    kind: ClassVar[str] = "time_since_last"

    def partials(self, scope: Scope) -> tuple[Partial, ...]:
        if self.column is None and self.where is None:
            return (EVENT_TIME_MAX,)
        return (self._time_partial(scope, "newest", Merge.MAX),)


@dataclass(frozen=True)
class TimeSinceFirst(_TimeSince):
    """Time from the oldest event, or value that is not null, of the window to the read.

    In milliseconds or ``unit``, as ``TimeSinceLast``. Over a lifetime: the age of the entity.

    >>> import paimon_features as pf
    >>> events = [
    ...     {"amount": None, "at_ms": 0},
    ...     {"amount": 2.0, "at_ms": 60_000},
    ...     {"amount": 5.0, "at_ms": 75_000},
    ... ]
    >>> pf.evaluate(pf.TimeSinceFirst(), events, as_of_ms=90_000)
    90000
    >>> pf.evaluate(pf.TimeSinceFirst("amount"), events, as_of_ms=90_000)
    30000
    """

    kind: ClassVar[str] = "time_since_first"

    def partials(self, scope: Scope) -> tuple[Partial, ...]:
        return (self._time_partial(scope, "oldest", Merge.MIN),)
