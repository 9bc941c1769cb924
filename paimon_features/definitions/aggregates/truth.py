"""Any and All: whether a condition was true for some event, or for every one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import DefinitionError
from paimon_features.core.expressions import parse
from paimon_features.core.types.array_types import Array, Bools
from paimon_features.core.types.schema import Bool, DataType, Int64
from paimon_features.definitions.aggregates.base import (
    Aggregate,
    Finished,
    Merge,
    Partial,
    Reading,
    Scope,
    digest,
)
from paimon_features.definitions.aggregates.basic import or_zero


@dataclass(frozen=True)
class _Truth(Aggregate):
    """Shared by Any and All: how often a condition was not null, and how often it was true.

    The condition is a Bool column, or an expression (``condition=``, which needs a ``name``).
    """

    condition: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.column is None) == (self.condition is None):
            raise DefinitionError(
                f"{self.kind} takes a Bool column or condition=, one of them; "
                f"got {self.column!r} and {self.condition!r}"
            )
        if self.condition is not None and self.name is None:
            raise DefinitionError(f"{self.kind}(condition={self.condition!r}) needs a name=")

    @property
    def conditions(self) -> tuple[str, ...]:
        added = () if self.condition is None else (self.condition,)
        return (*super().conditions, *added)

    def partials(self, scope: Scope) -> tuple[Partial, ...]:
        condition = f"{self.column}" if self.condition is None else f"({self.condition})"
        kind = self._input_type(scope) if self.condition is None else parse(condition, scope).type
        if kind != Bool:
            raise DefinitionError(f"{self.kind}: {condition} is {kind!r}; expected a condition")
        name = f"{self.column}" if self.condition is None else f"is_{digest(condition)}"
        return (
            self._counter(f"true_{name}", f"CASE WHEN {condition} THEN 1 ELSE 0 END"),
            self._counter(f"count_{name}", f"CASE WHEN {condition} IS NOT NULL THEN 1 ELSE 0 END"),
        )

    def _counter(self, name: str, expression: str) -> Partial:
        return self._partial(name, Int64, Merge.SUM, expression)

    def output_type(self, scope: Scope) -> DataType:
        return Bool

    def finish(self, scope: Scope, merged: Sequence[Column], reading: Reading) -> Finished:
        held, decided = or_zero(merged[0]), or_zero(merged[1])
        return Finished(Column(self._verdict(held, decided), decided > 0))

    def _verdict(self, held: Array, decided: Array) -> Bools:
        raise NotImplementedError


@dataclass(frozen=True)
class Any(_Truth):
    """Whether a condition was true for at least one event; null if it was null for all of them.

    >>> import paimon_features as pf
    >>> events = [{"amount": 2.0}, {"amount": None}, {"amount": 5.0}]
    >>> pf.evaluate(pf.Any(condition="amount > 4", name="any_large"), events)
    True
    >>> pf.evaluate(pf.Any(condition="amount > 9", name="any_large"), events)
    False
    """

    kind: ClassVar[str] = "any"

    def _verdict(self, held: Array, decided: Array) -> Bools:
        some: Bools = held > 0
        return some


@dataclass(frozen=True)
class All(_Truth):
    """Whether a condition was true for every event for which it was not null; null without any.

    >>> import paimon_features as pf
    >>> events = [{"amount": 2.0}, {"amount": None}, {"amount": 5.0}]
    >>> pf.evaluate(pf.All(condition="amount > 1", name="all_large"), events)
    True
    >>> pf.evaluate(pf.All(condition="amount > 4", name="all_large"), events)
    False
    """

    kind: ClassVar[str] = "all"

    def _verdict(self, held: Array, decided: Array) -> Bools:
        every: Bools = held == decided
        return every
