"""Time-decayed aggregates: a value has the weight ``2^(-age / half_life)``.

A tile contains ``v * 2^((ts - tile_end) / h)``; where tiles are merged, older partials are first
decayed to the end of the newest one. So the sum at any time ``q`` is exact for every event before
``q``, also in the open tile, and nothing overflows: weights are relative to the newest tile.
Values more than about a thousand half-lives older than the newest event count as zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import DefinitionError
from paimon_features.core.times.durations import option_ms
from paimon_features.core.types.schema import DataType, Float64
from paimon_features.core.windows import format_duration, parse_duration
from paimon_features.definitions.aggregates.base import (
    EVENT_TIME,
    FLOAT_BOUND,
    TILE_END,
    Aggregate,
    Finished,
    Merge,
    Partial,
    Reading,
    Scope,
)
from paimon_features.definitions.aggregates.basic import FLOAT_SUMS, bound_guard, or_zero


@dataclass(frozen=True)
class Decayed(Aggregate):
    """Shared by the decayed aggregates.

    ``half_life`` may be a list: then there is a feature for each half-life (and each window), all
    computed in one pass over the events. Partials that several aggregates need, such as the weights
    of one half-life, are stored once.

    >>> both = DecayedCount(half_life=["1h", "1d"], windows=["7d"])
    >>> [one.stem for one in both.each()]
    ['decayed_count_h1h', 'decayed_count_h1d']
    """

    half_life: str | Sequence[str] = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.half_life, str):
            object.__setattr__(self, "half_life", tuple(self.half_life))
        if not self._half_lives():
            raise DefinitionError(
                f"{self.kind}({self.column!r}) needs half_life=, for example '1d'"
            )
        lengths = [option_ms("half_life", half_life) for half_life in self._half_lives()]
        if len(set(lengths)) < len(lengths):
            raise DefinitionError(
                f"{self.kind}({self.column!r}): half_life={self.half_life!r} names one twice"
            )

    def _half_lives(self) -> tuple[str, ...]:
        if isinstance(self.half_life, str):
            return (self.half_life,) if self.half_life else ()
        return tuple(self.half_life)

    @property
    def half_life_ms(self) -> int:
        """The half-life in milliseconds, if there is exactly one."""
        (half_life,) = self._half_lives()
        return parse_duration(half_life)

    def each(self) -> tuple[Aggregate, ...]:
        if len(self._half_lives()) == 1:
            return (self,)
        # each of several needs its own name
        return tuple(
            replace(
                self,
                half_life=half_life,
                name=None if self.name is None else f"{self.name}_h{format_duration(length)}",
            )
            for half_life in self._half_lives()
            for length in (parse_duration(half_life),)
        )

    def accuracy(self, scope: Scope) -> str:
        return FLOAT_SUMS

    def _name_parts(self) -> tuple[str, ...]:
        return (f"h{format_duration(self.half_life_ms)}",)

    def _weight(self) -> str:
        return f"exp2(({EVENT_TIME} - {TILE_END}) / {self.half_life_ms})"

    def _decayed_partial(self, stem: str, expression: str, guarded: bool) -> Partial:
        bound = FLOAT_BOUND if self.bound is None else self.bound
        guards = (bound_guard(f"CAST({self.column} AS float64)", bound),) if guarded else ()
        return self._partial(
            f"{stem}_h{format_duration(self.half_life_ms)}",
            Float64,
            Merge.DECAYED_SUM,
            expression,
            half_life_ms=self.half_life_ms,
            guards=guards,
        )

    def _sum_partial(self, scope: Scope) -> Partial:
        self._numeric_type(scope)
        value = f"CAST({self.column} AS float64) * {self._weight()}"
        return self._decayed_partial(f"decayed_sum_{self.column}", value, guarded=True)

    def _weight_partial(self) -> Partial:
        if self.column is None:
            return self._decayed_partial("decayed_rows", self._weight(), guarded=False)
        counted = f"CASE WHEN {self.column} IS NOT NULL THEN {self._weight()} END"
        return self._decayed_partial(f"decayed_count_{self.column}", counted, guarded=False)

    def output_type(self, scope: Scope) -> DataType:
        return Float64

    def finish(self, scope: Scope, merged: Sequence[Column], reading: Reading) -> Finished:
        return Finished(Column(or_zero(merged[0]) * np.exp2(-reading.since_ms / self.half_life_ms)))


@dataclass(frozen=True)
class DecayedSum(Decayed):
    """Sum of ``v * 2^(-(as_of - event_time) / half_life)``; 0 for an empty window.

    >>> import paimon_features as pf
    >>> events = [
    ...     {"amount": 8.0, "at_ms": 0},
    ...     {"amount": 4.0, "at_ms": 3_600_000},
    ...     {"amount": 2.0, "at_ms": 7_200_000},
    ... ]
    >>> round(pf.evaluate(pf.DecayedSum("amount", half_life="1h"), events, as_of_ms=10_800_000), 9)
    3.0
    >>> pf.DecayedSum("amount", half_life="1d", windows=["30d"]).feature_name(30 * 86_400_000)
    'decayed_sum_amount_h1d_30d'
    """

    kind: ClassVar[str] = "decayed_sum"

    def partials(self, scope: Scope) -> tuple[Partial, ...]:
        return (self._sum_partial(scope),)


@dataclass(frozen=True)
class DecayedCount(Decayed):
    """Sum of ``2^(-(as_of - event_time) / half_life)`` over events, or over values that are not
    null.

    >>> import paimon_features as pf
    >>> events = [
    ...     {"amount": 8.0, "at_ms": 0},
    ...     {"amount": None, "at_ms": 3_600_000},
    ...     {"amount": 2.0, "at_ms": 7_200_000},
    ... ]
    >>> count = pf.evaluate(pf.DecayedCount(half_life="1h"), events, as_of_ms=10_800_000)
    >>> round(count, 9)
    0.875
    >>> count = pf.evaluate(pf.DecayedCount("amount", half_life="1h"), events, as_of_ms=10_800_000)
    >>> round(count, 9)
    0.625
    """

    kind: ClassVar[str] = "decayed_count"

    def partials(self, scope: Scope) -> tuple[Partial, ...]:
        if self.column is not None:
            self._input_type(scope)
        return (self._weight_partial(),)


@dataclass(frozen=True)
class DecayedMean(Decayed):
    """Mean with weights ``2^(-(as_of - event_time) / half_life)``; null without values.

    >>> import paimon_features as pf
    >>> events = [
    ...     {"amount": 8.0, "at_ms": 0},
    ...     {"amount": 2.0, "at_ms": 3_600_000},
    ...     {"amount": 4.0, "at_ms": 7_200_000},
    ... ]
    >>> round(pf.evaluate(pf.DecayedMean("amount", half_life="1h"), events), 9)
    4.0
    """

    kind: ClassVar[str] = "decayed_mean"

    def why_not_retractable(self, scope: Scope) -> str | None:
        return (
            "its weights are floats, so after retractions it could be a quotient of rounding "
            "errors; use DecayedSum and DecayedCount"
        )

    def partials(self, scope: Scope) -> tuple[Partial, ...]:
        return (self._sum_partial(scope), self._weight_partial())

    def finish(self, scope: Scope, merged: Sequence[Column], reading: Reading) -> Finished:
        total, weight = or_zero(merged[0]), or_zero(merged[1])
        seen = weight > 0
        return Finished(Column(total / np.where(seen, weight, 1.0), seen))
