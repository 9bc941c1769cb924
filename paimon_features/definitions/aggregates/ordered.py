"""First and Last, one or several: from texts whose order is the order of time.

The partial of ``Last`` is ``ordered(event_time, value)``, an encoding in which text order is the
order of (time, value): the lake's ``max`` on strings then keeps the newest value, and of several
at the same time the greatest. With a tie breaker it is ``item(event_time, tie, value)``, and
the greatest tie breaker wins; a vector is ``item(event_time, tie, element, element ...)``.
``First`` is its mirror image. ``LastN`` and ``FirstN`` keep a list of such items.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import DamagedValueError, DefinitionError
from paimon_features.core.expressions import DELIMITER, PART, decode_items, decode_ordered
from paimon_features.core.types.schema import DataType, List, ListType, String
from paimon_features.definitions.aggregates.base import (
    EVENT_TIME,
    Aggregate,
    Finished,
    Merge,
    Partial,
    Reading,
    Scope,
)
from paimon_features.definitions.aggregates.basic import objects, widened
from paimon_features.definitions.aggregates.vectors import (
    elements,
    ordered_vector_guards,
    vector_type,
)

MAX_ITEMS = 1000
"""Maximum length of a list."""
MAX_VECTOR = 16
"""Longest vector of First and Last: an element takes 1.5 KB of the tile job's SQL. A job with 16
starts within seconds, one with 64 was still being planned after five minutes."""


@dataclass(frozen=True)
class _InTime(Aggregate):
    """Shared by all aggregates that choose values by time."""

    tie: str | None = field(default=None, kw_only=True)

    newest: ClassVar[bool]

    def _name(self) -> str:
        return f"{self.column}" if self.tie is None else f"{self.column}_tie_{self.tie}"

    @property
    def _parts(self) -> int:
        if self.tie is None:
            return 2
        return 3 if self.newest else 4

    def _item(self, scope: Scope, *values: str) -> str:
        """Return time, tie breaker and values as an item. A null tie breaker loses."""
        parts = [EVENT_TIME]
        if self.tie is not None:
            self._scalar_type(scope, self.tie)
            parts.append(self.tie if self.newest else f"{self.tie} IS NULL, {self.tie}")
        return f"item({', '.join((*parts, *values))})"


@dataclass(frozen=True)
class _One(_InTime):
    """Shared by First and Last.

    The column is a scalar or a vector: ``List(T, n)``, up to 16 integers or floats. An event whose
    list has another length, or contains a null, is not a vector: it does not enter the tiles and is
    counted. Vectors are ordered by their first elements, equal ones by the second, and so on.
    """

    merge: ClassVar[Merge]

    def partials(self, scope: Scope) -> tuple[Partial, ...]:
        vector, column = self._vector_type(scope), str(self.column)
        if vector is not None:
            expression = self._item(scope, *elements(column, vector))
        elif self.tie is not None:
            expression = self._item(scope, column)
        else:
            expression = f"ordered({EVENT_TIME}, {column})"
        guards = self._finite_guards(scope, column, self.tie)
        if vector is not None:
            guards += ordered_vector_guards(column, vector)
        name = f"{self.kind}_{self._name()}"
        return (self._partial(name, String, self.merge, expression, guards=guards),)

    def _vector_type(self, scope: Scope) -> ListType | None:
        """Return the column's type if it is a vector, None if it is a scalar."""
        kind = self._input_type(scope)
        if isinstance(kind, ListType):
            return vector_type(self.kind, self.column, kind, MAX_VECTOR)
        self._scalar_type(scope)
        return None

    def output_type(self, scope: Scope) -> DataType:
        vector = self._vector_type(scope)
        if vector is not None:
            return List(widened(vector.item), vector.length)
        return widened(self._scalar_type(scope))

    def finish(self, scope: Scope, merged: Sequence[Column], reading: Reading) -> Finished:
        encoded, kind = merged[0], self.output_type(scope)
        out = Column.nulls(len(encoded), kind)
        present = encoded.mask
        if not present.any():
            return Finished(out)
        if isinstance(kind, ListType):
            assert kind.length is not None
            texts = encoded.values[present].tolist()
            # decoded together, then split again
            flat = [part for text in texts for part in text.split(PART)[-kind.length :]]
            if len(flat) != len(texts) * kind.length:
                raise DamagedValueError(f"an item has fewer than {kind.length} elements")
            numbers = decode_items(flat, kind.item)
            starts = range(0, len(numbers), kind.length)
            out.values[present] = objects(
                (numbers[start : start + kind.length] for start in starts), len(texts)
            )
        elif self.tie is None:
            out.values[present] = decode_ordered(encoded.values[present], kind)[1].values
        else:
            out.values[present] = decode_items(encoded.values[present].tolist(), kind, self._parts)
        return Finished(Column(out.values, present))


@dataclass(frozen=True)
class Last(_One):
    """The newest value that is not null; null if there is none.

    Of several values at one time the one with the greatest ``tie`` column (a null one loses), and
    of several with the same, or without a tie breaker, the greatest value.

    >>> import paimon_features as pf
    >>> visits = [{"page": "a", "at_ms": 1}, {"page": "c", "at_ms": 2}, {"page": "b", "at_ms": 2}]
    >>> pf.evaluate(pf.Last("page"), [*visits, {"page": None, "at_ms": 3}])
    'c'
    """

    kind: ClassVar[str] = "last"
    newest: ClassVar[bool] = True
    merge: ClassVar[Merge] = Merge.MAX


@dataclass(frozen=True)
class First(_One):
    """The oldest value that is not null; null if there is none.

    Of several values at one time the one with the smallest ``tie`` column (a null one loses), and
    of several with the same, or without a tie breaker, the smallest value.

    >>> import paimon_features as pf
    >>> visits = [{"page": None, "at_ms": 0}, {"page": "c", "at_ms": 2}, {"page": "b", "at_ms": 2}]
    >>> pf.evaluate(pf.First("page"), visits)
    'b'
    """

    kind: ClassVar[str] = "first"
    newest: ClassVar[bool] = False
    merge: ClassVar[Merge] = Merge.MIN


@dataclass(frozen=True)
class Several(Aggregate):
    """Shared by all aggregates that finish to a list of at most ``n`` values, the best first."""

    n: int = field(default=10, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.n <= MAX_ITEMS:
            raise DefinitionError(
                f"{self.kind}({self.column!r}): n={self.n!r}; expected 1 to {MAX_ITEMS}"
            )

    @property
    def _parts(self) -> int:
        """How many parts an item has; the last is the value."""
        return 1

    def _name_parts(self) -> tuple[str, ...]:
        return (str(self.n),)

    def output_type(self, scope: Scope) -> DataType:
        return List(widened(self._scalar_type(scope)))

    def finish(self, scope: Scope, merged: Sequence[Column], reading: Reading) -> Finished:
        kind, lists = widened(self._scalar_type(scope)), merged[0]
        present = lists.mask
        split = [text.split(DELIMITER)[: self.n] for text in lists.values[present].tolist()]
        # decoded together, then dealt out again
        flat = [item for items in split for item in items]
        values = iter(decode_items(flat, kind, self._parts))
        out = Column.nulls(len(lists), self.output_type(scope))
        out.values[present] = objects(
            ([next(values) for _ in items] for items in split), len(split)
        )
        return Finished(Column(out.values, lists.valid))


@dataclass(frozen=True)
class _SeveralInTime(_InTime, Several):
    """Shared by FirstN and LastN."""

    def _list_partial(self, scope: Scope, merge: Merge) -> Partial:
        self._scalar_type(scope)
        name, item = f"{self.kind}_{self._name()}", self._item(scope, str(self.column))
        guards = self._finite_guards(scope, self.column, self.tie)
        return self._partial(name, String, merge, item, guards=guards, limit=self.n)


@dataclass(frozen=True)
class LastN(_SeveralInTime):
    """The newest ``n`` values that are not null, newest first; null if there is none.

    Ties are broken as by ``Last``. The lake keeps every value of a tile; ``n`` bounds what the
    online store keeps, so that another ``n`` needs no backfill.

    >>> import paimon_features as pf
    >>> visits = [{"page": "a"}, {"page": "b"}, {"page": None}, {"page": "a"}]
    >>> pf.evaluate(pf.LastN("page", n=2), visits)
    ['a', 'b']
    >>> pf.LastN("country", n=3, windows=["1d"]).feature_name(86_400_000)
    'last_n_country_3_1d'
    """

    kind: ClassVar[str] = "last_n"
    newest: ClassVar[bool] = True

    def partials(self, scope: Scope) -> tuple[Partial, ...]:
        return (self._list_partial(scope, Merge.TOP),)


@dataclass(frozen=True)
class FirstN(_SeveralInTime):
    """The oldest ``n`` values that are not null, oldest first; null if there is none.

    Ties are broken as by ``First``; the lake keeps the same values as for ``LastN``.

    >>> import paimon_features as pf
    >>> visits = [{"page": None}, {"page": "a"}, {"page": "b"}, {"page": "a"}]
    >>> pf.evaluate(pf.FirstN("page", n=2), visits)
    ['a', 'b']
    """

    kind: ClassVar[str] = "first_n"
    newest: ClassVar[bool] = False

    def partials(self, scope: Scope) -> tuple[Partial, ...]:
        return (self._list_partial(scope, Merge.BOTTOM),)


@dataclass(frozen=True)
class _ByValue(Several):
    """Shared by TopK and BottomK."""

    by: str | None = field(default=None, kw_only=True)

    merge: ClassVar[Merge]

    def partials(self, scope: Scope) -> tuple[Partial, ...]:
        self._scalar_type(scope)
        name, item = f"{self.kind}_{self.column}", f"item({self.column})"
        if self.by is not None:
            self._scalar_type(scope, self.by)
            name += f"_by_{self.by}"
            item = f"CASE WHEN {self.by} IS NOT NULL THEN item({self.by}, {self.column}) END"
        guards = self._finite_guards(scope, self.column, self.by)
        return (self._partial(name, String, self.merge, item, guards=guards, limit=self.n),)

    @property
    def _parts(self) -> int:
        return 1 if self.by is None else 2

    def _name_parts(self) -> tuple[str, ...]:
        return (str(self.n),) if self.by is None else ("by", self.by, str(self.n))


@dataclass(frozen=True)
class TopK(_ByValue):
    """The ``n`` greatest values, greatest first; null if there is none.

    With ``by``, the values of the events that are greatest by that column, of equal ones the
    greatest values; events where either is null are left out. A value occurs as often as it was
    seen.

    >>> import paimon_features as pf
    >>> sales = [{"id": "a", "price": 5.0}, {"id": "b", "price": 9.0}, {"id": "c", "price": 5.0}]
    >>> pf.evaluate(pf.TopK("price", n=3), sales)
    [9.0, 5.0, 5.0]
    >>> pf.evaluate(pf.TopK("id", by="price", n=2), sales)
    ['b', 'c']
    """

    kind: ClassVar[str] = "top_k"
    merge: ClassVar[Merge] = Merge.TOP


@dataclass(frozen=True)
class BottomK(_ByValue):
    """The ``n`` smallest values, smallest first; otherwise as ``TopK``.

    >>> import paimon_features as pf
    >>> sales = [{"id": "a", "price": 5.0}, {"id": "b", "price": 9.0}, {"id": "c", "price": 5.0}]
    >>> pf.evaluate(pf.BottomK("price", n=2), sales)
    [5.0, 5.0]
    >>> pf.evaluate(pf.BottomK("id", by="price", n=2), sales)
    ['a', 'c']
    """

    kind: ClassVar[str] = "bottom_k"
    merge: ClassVar[Merge] = Merge.BOTTOM
