"""CountBy, SumBy, TopCategories: one number per category."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import DefinitionError
from paimon_features.core.expressions import DELIMITER, decode_items
from paimon_features.core.types.schema import DataType, Int64, Map, String
from paimon_features.definitions.aggregates.bags import counted_item
from paimon_features.definitions.aggregates.base import (
    Aggregate,
    Finished,
    Merge,
    Partial,
    Reading,
    Scope,
    digest,
)
from paimon_features.definitions.aggregates.basic import Numeric, Sum, objects, or_zero
from paimon_features.definitions.aggregates.ordered import Several

MAX_VALUES = 200
"""Maximum number of categories of one definition: each is a column of the tile table."""

Category = str | int | bool


@dataclass(frozen=True)
class _ByCategory(Aggregate):
    """Shared by CountBy and SumBy: a number for each declared category, and one for all others."""

    values: Sequence[Category] = field(default=(), kw_only=True)
    other: str | None = field(default="other", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= len(self.values) <= MAX_VALUES:
            raise DefinitionError(
                f"{self.kind}: values={self.values!r}; expected a list of 1 to {MAX_VALUES} "
                "categories"
            )
        object.__setattr__(self, "values", tuple(self.values))
        names = [_text(value) for value in self.values]
        if len(set(names)) < len(names):
            raise DefinitionError(f"{self.kind}: values={list(self.values)!r} names one twice")
        if self.other in names:
            raise DefinitionError(
                f"{self.kind}: {self.other!r} is both a category and the name of all others; give "
                "other= another name, or None to leave the others out"
            )

    def _names(self) -> list[str]:
        """Return the keys of the finished map, in order."""
        names = [_text(value) for value in self.values]
        return names if self.other is None else [*names, self.other]

    def _cases(self, scope: Scope, by: str) -> list[tuple[str, str]]:
        """Return the suffix of the partial's name and the condition of the events of each key."""
        kind = self._scalar_type(scope, by)
        expected = {"string": str, "bool": bool}.get(kind.text, int if kind.is_integer else None)
        wrong = [value for value in self.values if type(value) is not expected]
        if expected is None or wrong:
            expectation = "expected a column of texts, integers or booleans"
            raise DefinitionError(
                f"{self.kind}: {by!r} is {kind!r}; "
                + (expectation if expected is None else f"it cannot be {wrong[0]!r}")
            )
        literals = [_literal(value) for value in self.values]
        cases = [(digest(literal), f"{by} = {literal}") for literal in literals]
        if self.other is None:
            return cases
        among = " OR ".join(f"{by} = {literal}" for literal in literals)
        if kind.text != "bool":
            among = f"{by} IN ({', '.join(literals)})"
        return [*cases, (f"not_{digest(*sorted(literals))}", f"NOT ({among})")]

    def _map(self, columns: Sequence[Column]) -> Finished:
        """Return one map per row, from columns in the order of the keys."""
        lists = [column.values.tolist() for column in columns]
        names = self._names()
        pairs = ([*zip(names, row, strict=True)] for row in zip(*lists, strict=True))
        return Finished(Column(objects(pairs, len(columns[0]))))


@dataclass(frozen=True)
class CountBy(_ByCategory):
    """Number of events of each declared category, as a map in the order of ``values``.

    All other categories count as ``other``; with ``other=None`` they are left out. A null category
    is not counted. An empty window has all categories with 0.

    >>> import paimon_features as pf
    >>> visits = [{"country": "FR"}, {"country": "IT"}, {"country": None}, {"country": "FR"}]
    >>> pf.evaluate(pf.CountBy("country", values=["FR", "DE"]), visits)
    [('FR', 2), ('DE', 0), ('other', 1)]
    """

    kind: ClassVar[str] = "count_by"

    def partials(self, scope: Scope) -> tuple[Partial, ...]:
        self._input_type(scope)
        return tuple(
            self._partial(
                f"count_{self.column}_is_{name}",
                Int64,
                Merge.SUM,
                f"CASE WHEN {condition} THEN 1 ELSE 0 END",
            )
            for name, condition in self._cases(scope, f"{self.column}")
        )

    def output_type(self, scope: Scope) -> DataType:
        return Map(String, Int64)

    def finish(self, scope: Scope, merged: Sequence[Column], reading: Reading) -> Finished:
        return self._map([Column(or_zero(column)) for column in merged])


@dataclass(frozen=True)
class SumBy(_ByCategory, Numeric):
    """Sum of a column for each declared category of the column ``by``, as a map.

    Sums are computed as by ``Sum``, categories as by ``CountBy``.

    >>> import paimon_features as pf
    >>> sales = [
    ...     {"country": "FR", "amount": 2.0},
    ...     {"country": "DE", "amount": 5.0},
    ...     {"country": "FR", "amount": None},
    ... ]
    >>> pf.evaluate(pf.SumBy("amount", by="country", values=["FR", "DE"], other=None), sales)
    [('FR', 2.0), ('DE', 5.0)]
    """

    kind: ClassVar[str] = "sum_by"
    by: str = field(default="", kw_only=True)

    def _stem(self) -> str:
        return f"sum_{self.column}_by_{self.by}"

    def partials(self, scope: Scope) -> tuple[Partial, ...]:
        if not self.by:
            raise DefinitionError(f"sum_by({self.column!r}) needs by=, the column of categories")
        value = self._value_partial(scope, Merge.SUM, "sum")
        return tuple(
            replace(
                value,
                name=f"{value.name}_{self.by}_is_{name}",
                expression=f"CASE WHEN {condition} THEN {value.expression} END",
            )
            for name, condition in self._cases(scope, self.by)
        )

    def output_type(self, scope: Scope) -> DataType:
        return Map(String, self._sum().output_type(scope))

    def finish(self, scope: Scope, merged: Sequence[Column], reading: Reading) -> Finished:
        done = [self._sum().finish(scope, [column], reading) for column in merged]
        return self._map([finished.column for finished in done])

    def _sum(self) -> Sum:
        return Sum(self.column, scale=self.scale)


@dataclass(frozen=True)
class TopCategories(Several):
    """The ``n`` most frequent values and their counts, the most frequent first; null if none.

    Of equally frequent values the lesser text comes first. Exact: every distinct value of a cell
    is kept with its count, in the lake and online, so a column with many distinct values is
    expensive (their texts and about ten bytes each); ``CountBy`` costs 8 bytes per category. Values
    are texts, integers or booleans.

    >>> import paimon_features as pf
    >>> visits = [{"country": "IT"}, {"country": "FR"}, {"country": "DE"}, {"country": "FR"}]
    >>> pf.evaluate(pf.TopCategories("country", n=2), visits)
    [('FR', 2), ('DE', 1)]
    """

    kind: ClassVar[str] = "top_categories"

    def partials(self, scope: Scope) -> tuple[Partial, ...]:
        kind, value = self._scalar_type(scope), f"{self.column}"
        if kind.is_integer or kind.text == "bool":
            value = f"CAST({self.column} AS string)"
        elif kind != String:
            raise DefinitionError(
                f"top_categories({self.column!r}): the column is {kind!r}; expected texts, "
                "integers or booleans"
            )
        return (self._partial(f"counts_{self.column}", String, Merge.COUNTS, f"item({value})"),)

    def output_type(self, scope: Scope) -> DataType:
        return Map(String, Int64)

    def finish(self, scope: Scope, merged: Sequence[Column], reading: Reading) -> Finished:
        out = Column.nulls(len(merged[0]), self.output_type(scope))
        for row in merged[0].mask.nonzero()[0]:
            out.values[row] = self._most_frequent(merged[0].values[row])
        return Finished(Column(out.values, merged[0].valid))

    def _most_frequent(self, text: str) -> list[tuple[str, int]]:
        pairs = [counted_item(item) for item in text.split(DELIMITER)]
        values = decode_items([item for item, _ in pairs], String)
        counted = [(value, number) for value, (_, number) in zip(values, pairs, strict=True)]
        return sorted(counted, key=lambda pair: (-pair[1], pair[0]))[: self.n]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _literal(value: Category) -> str:
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"
