"""Last: the newest value, from a text whose order is the order of time.

The partial is ``ordered(event_time, value)``, an encoding in which text order is the order of
(time, value): the lake's ``max`` on strings then keeps the newest value, and of several at the
same time the greatest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from paimon_features.aggregates.base import (
    EVENT_TIME,
    Aggregate,
    Finished,
    Merge,
    Partial,
    Scope,
)
from paimon_features.aggregates.basic import Ints
from paimon_features.columns import Column
from paimon_features.errors import DefinitionError
from paimon_features.expressions import decode_ordered
from paimon_features.schema import Bytes, DataType, Float32, Float64, Int32, Int64, ListType, String


@dataclass(frozen=True)
class Last(Aggregate):
    """The newest value that is not null; of several at one time the greatest. Null if none."""

    kind: ClassVar[str] = "last"

    def partials(self, scope: Scope) -> tuple[Partial, ...]:
        kind = self._input_type(scope)
        if isinstance(kind, ListType) or kind == Bytes:
            raise DefinitionError(f"last({self.column!r}): a column of {kind!r} has no order")
        expression = f"ordered({EVENT_TIME}, {self.column})"
        return (self._partial(f"last_{self.column}", String, Merge.MAX, expression),)

    def output_type(self, scope: Scope) -> DataType:
        kind = self._input_type(scope)
        return {Int32: Int64, Float32: Float64}.get(kind, kind)

    def finish(self, scope: Scope, merged: Sequence[Column], since_ms: Ints) -> Finished:
        encoded = merged[0]
        if not encoded.mask.any():
            return Finished(Column.nulls(len(encoded), self.output_type(scope)))
        present = encoded.mask
        _, values = decode_ordered(encoded.values[present], self.output_type(scope))
        out = Column.nulls(len(encoded), self.output_type(scope))
        out.values[present] = values.values
        return Finished(Column(out.values, present))
