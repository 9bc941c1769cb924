"""Lists of one length as vectors; VectorSum and VectorMean: element by element over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import DefinitionError
from paimon_features.core.types.array_types import Bools
from paimon_features.core.types.schema import DataType, Float64, List, ListType
from paimon_features.definitions.aggregates.base import (
    Finished,
    Guard,
    Merge,
    Partial,
    Reading,
    Scope,
)
from paimon_features.definitions.aggregates.basic import Mean, Numeric, Sum, objects, or_zero

MAX_LENGTH = 256
"""Longest vector: each element is a column of the tile table."""


def vector_type(
    aggregate: str, column: str | None, kind: DataType, longest: int = MAX_LENGTH
) -> ListType:
    """Return the type of a column of vectors.

    Raises
    ------
    DefinitionError
        For any other type than a list of up to ``longest`` integers or floats.
    """
    if not isinstance(kind, ListType) or kind.length is None or not kind.item.is_numeric:
        raise DefinitionError(
            f"{aggregate}({column!r}): the column is {kind!r}; expected List(T, n), "
            "numbers of a declared length"
        )
    if kind.length > longest or kind.item.is_decimal:
        raise DefinitionError(
            f"{aggregate}({column!r}): the column is {kind!r}; expected up to "
            f"{longest} integers or floats"
        )
    return kind


def elements(column: str, kind: ListType) -> list[str]:
    """Return the expression of each element."""
    assert kind.length is not None
    return [f"element({column}, {position})" for position in range(1, kind.length + 1)]


def complete_vector(column: str, kind: ListType, *parts: str) -> Guard:
    """Return the guard for lists of the declared length in which these elements are not null."""
    not_null = " AND ".join(f"{element} IS NOT NULL" for element in parts)
    return Guard(
        f"({column} IS NULL OR (size({column}) = {kind.length} AND {not_null}))",
        f"{column} is not a list of {kind.length} numbers",
    )


def ordered_vector_guards(column: str, kind: ListType) -> tuple[Guard, ...]:
    """Return guards for vectors that are ordered: they are complete, and contain no NaN."""
    parts = elements(column, kind)
    complete = complete_vector(column, kind, *parts)
    if not kind.item.is_float:
        return (complete,)
    finite = " AND ".join(f"({element} IS NULL OR finite({element}))" for element in parts)
    return complete, Guard(f"({finite})", f"{column} is not finite")


@dataclass(frozen=True)
class _Vector(Numeric):
    """Shared by VectorSum and VectorMean.

    The column is ``List(T, n)``. An event whose list has another length, or contains a null, is not
    a vector: it does not enter the tiles and is counted. A null list is skipped.
    """

    def _list_type(self, scope: Scope) -> ListType:
        return vector_type(self.kind, self.column, self._input_type(scope))

    def _number_type(self, scope: Scope) -> DataType:
        return self._list_type(scope).item

    def _sums(self, scope: Scope) -> tuple[Partial, ...]:
        kind, column = self._list_type(scope), str(self.column)
        partials = []
        for position, element in enumerate(elements(column, kind), 1):
            name = f"sum_{column}_{position}"
            partial = self._value_partial(scope, Merge.SUM, name, element)
            complete = self._guarded(complete_vector(column, kind, element))
            partials.append(replace(partial, guards=(complete, *partial.guards)))
        return tuple(partials)

    def _lists(self, columns: Sequence[Column], valid: Bools | None = None) -> Finished:
        # axes: rows, elements
        matrix = np.stack([column.values for column in columns], axis=1)
        return Finished(Column(objects(matrix.tolist(), len(matrix)), valid))


@dataclass(frozen=True)
class VectorSum(_Vector):
    """Sum of each element of a list column; zeros for an empty window.

    Exact for integers, and for floats with ``scale``, as ``Sum``.

    >>> import paimon_features as pf
    >>> events = [{"embedding": [1.0, 2.0]}, {"embedding": None}, {"embedding": [3.0, 6.0]}]
    >>> pf.evaluate(pf.VectorSum("embedding"), events)
    [4.0, 8.0]
    """

    kind: ClassVar[str] = "vector_sum"

    def partials(self, scope: Scope) -> tuple[Partial, ...]:
        return self._sums(scope)

    def output_type(self, scope: Scope) -> DataType:
        kind = self._list_type(scope)
        return List(self._one().output_type({"one": kind.item}), kind.length)

    def finish(self, scope: Scope, merged: Sequence[Column], reading: Reading) -> Finished:
        element_scope = {"one": self._number_type(scope)}
        one = self._one()
        return self._lists(
            [one.finish(element_scope, [column], reading).column for column in merged]
        )

    def _one(self) -> Sum:
        return Sum("one", scale=self.scale)


@dataclass(frozen=True)
class VectorMean(_Vector):
    """Mean of each element of a list column; null without lists.

    >>> import paimon_features as pf
    >>> events = [{"embedding": [1.0, 2.0]}, {"embedding": None}, {"embedding": [3.0, 6.0]}]
    >>> pf.evaluate(pf.VectorMean("embedding"), events)
    [2.0, 4.0]
    """

    kind: ClassVar[str] = "vector_mean"

    def partials(self, scope: Scope) -> tuple[Partial, ...]:
        return (*self._sums(scope), self._count_partial())

    def output_type(self, scope: Scope) -> DataType:
        return List(Float64, self._list_type(scope).length)

    def finish(self, scope: Scope, merged: Sequence[Column], reading: Reading) -> Finished:
        element_scope, one = {"one": self._number_type(scope)}, Mean("one", scale=self.scale)
        means = [
            one.finish(element_scope, [column, merged[-1]], reading).column
            for column in merged[:-1]
        ]
        return self._lists(means, or_zero(merged[-1]) > 0)
