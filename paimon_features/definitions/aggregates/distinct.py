"""ApproxCountDistinct: the number of distinct values, estimated from sketches of sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from paimon_features.core.columns.column import Column
from paimon_features.core.types.schema import Bytes, DataType, Int64
from paimon_features.definitions.aggregates.base import (
    Aggregate,
    Finished,
    Merge,
    Partial,
    Reading,
    Scope,
)
from paimon_features.definitions.aggregates.registers import (
    RELATIVE_ERROR,
    decode_sketches,
    estimates,
)


@dataclass(frozen=True)
class ApproxCountDistinct(Aggregate):
    """Approximate number of distinct values that are not null; 0 for an empty window.

    HyperLogLog with 4,096 registers: the standard error is 1.6 % (two estimates of three are
    nearer, 19 of 20 within twice that), up to about fifty million distinct values. The
    estimate depends on the set of values only, so it is the same number on every path.
    Zeros of either sign are one value. A cell takes two bytes per value, 8 KB at most.

    >>> import paimon_features as pf
    >>> visits = [{"page": "a"}, {"page": "b"}, {"page": None}, {"page": "a"}]
    >>> pf.evaluate(pf.ApproxCountDistinct("page"), visits)
    2
    """

    kind: ClassVar[str] = "approx_count_distinct"

    def partials(self, scope: Scope) -> tuple[Partial, ...]:
        self._scalar_type(scope)
        sketch = f"distinct_item(md5(item({self.column})))"
        name, guards = f"distinct_{self.column}", self._finite_guards(scope, self.column)
        return (self._partial(name, Bytes, Merge.REGISTERS, sketch, guards=guards),)

    def output_type(self, scope: Scope) -> DataType:
        return Int64

    def finish(self, scope: Scope, merged: Sequence[Column], reading: Reading) -> Finished:
        mask = merged[0].mask
        codes, counts = decode_sketches(merged[0].values[mask].tolist())
        sizes = np.zeros(len(mask), np.int64)
        sizes[mask] = counts
        return Finished(Column(estimates(codes, np.concatenate([[0], np.cumsum(sizes)]))))

    def accuracy(self, scope: Scope) -> str:
        return f"an estimate with a standard error of {RELATIVE_ERROR:.1%}; the same on every path"
