"""Histogram and Quantile: a counter for each bin between declared edges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import ClassVar

import numpy as np

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import DefinitionError
from paimon_features.core.types.schema import DataType, Float64, Int64, List
from paimon_features.definitions.aggregates.base import (
    FLOAT_BOUND,
    Aggregate,
    Finished,
    Merge,
    Partial,
    Reading,
    Scope,
    digest,
)
from paimon_features.definitions.aggregates.basic import bound_guard, objects, or_zero

MAX_EDGES = 255
"""Maximum number of edges of one definition: each bin is a column of the tile table."""


def linear_edges(low: float, high: float, bins: int) -> tuple[float, ...]:
    """Return ``bins + 1`` equally spaced edges from ``low`` to ``high``.

    A quantile between them has an error of at most ``(high - low) / bins``.

    >>> linear_edges(0, 10, 4)
    (0.0, 2.5, 5.0, 7.5, 10.0)
    """
    if not (bins >= 1 and low < high):
        raise DefinitionError(f"linear_edges({low!r}, {high!r}, {bins!r}): expected low < high")
    return tuple(low + (high - low) * step / bins for step in range(bins + 1))


def log_edges(low: float, high: float, error: float) -> tuple[float, ...]:
    """Return edges from ``low`` to at least ``high``, each ``1 + error`` times the one before.

    A quantile between them has a relative error of at most ``error``.

    >>> [round(edge, 3) for edge in log_edges(1, 2, 0.3)]
    [1.0, 1.3, 1.69, 2.197]
    """
    if not 0 < low < high or not 0 < error < 1:
        raise DefinitionError(
            f"log_edges({low!r}, {high!r}, {error!r}): expected 0 < low < high, 0 < error < 1"
        )
    steps = math.ceil(math.log(high / low) / math.log1p(error) - 1e-9)
    return tuple(low * (1 + error) ** step for step in range(steps + 1))


@dataclass(frozen=True)
class _Binned(Aggregate):
    """Shared by Histogram and Quantile. Bins include their lower edge: ``edge <= value < next
    edge``.
    """

    edges: Sequence[float] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        edges = [float(edge) for edge in self.edges]
        rising = all(low < high for low, high in pairwise(edges))
        if not 1 <= len(edges) <= MAX_EDGES or not rising or not np.isfinite(edges).all():
            raise DefinitionError(
                f"{self.kind}({self.column!r}): edges={self.edges!r}; expected 1 to {MAX_EDGES} "
                "finite numbers, each greater than the one before"
            )
        object.__setattr__(self, "edges", tuple(edges))

    def partials(self, scope: Scope) -> tuple[Partial, ...]:
        self._numeric_type(scope)
        value = f"CAST({self.column} AS float64)"
        bound = FLOAT_BOUND if self.bound is None else self.bound
        name = digest(repr(self.edges))
        inner = [f"{value} >= {low!r} AND {value} < {high!r}" for low, high in pairwise(self.edges)]
        bins = [f"{value} < {self.edges[0]!r}", *inner, f"{value} >= {self.edges[-1]!r}"]
        return tuple(
            self._partial(
                f"bin_{self.column}_{name}_{number}",
                Int64,
                Merge.SUM,
                f"CASE WHEN {inside} THEN 1 ELSE 0 END",
                # NaN is in no bin
                guards=(bound_guard(value, bound),),
            )
            for number, inside in enumerate(bins)
        )


@dataclass(frozen=True)
class Histogram(_Binned):
    """Number of values in each bin: below the first edge, between two, from the last edge upwards.

    A list of ``len(edges) + 1`` counts, all 0 for an empty window. ``linear_edges`` and
    ``log_edges`` compute edges.

    >>> import paimon_features as pf
    >>> events = [{"amount": 2.0}, {"amount": None}, {"amount": 3.0}, {"amount": 7.0}]
    >>> pf.evaluate(pf.Histogram("amount", edges=[0, 3, 6]), events)
    [0, 1, 1, 1]
    """

    kind: ClassVar[str] = "histogram"

    def output_type(self, scope: Scope) -> DataType:
        return List(Int64, len(self.edges) + 1)

    def finish(self, scope: Scope, merged: Sequence[Column], reading: Reading) -> Finished:
        # axes: rows, bins
        counts = np.stack([or_zero(column) for column in merged], axis=1)
        return Finished(Column(objects(counts.tolist(), len(counts))))


@dataclass(frozen=True)
class Quantile(_Binned):
    """The value below which a share ``q`` of the values lies, from counts between edges.

    It is interpolated within the bin that contains the value of rank ``q * n`` (counted from 1,
    rounded up), so its error is at most the width of that bin; below the first edge and from the
    last edge upwards it is that edge. ``q`` may be a list: then there is a feature for each. Null
    for an empty window. A ``Histogram`` of the same edges shares the partials.

    >>> import paimon_features as pf
    >>> events = [{"amount": 2.0}, {"amount": None}, {"amount": 5.0}]
    >>> pf.evaluate(pf.Quantile("amount", q=[0.5, 0.9], edges=[0, 3, 6]), events)
    {'quantile_amount_p50': 3.0, 'quantile_amount_p90': 5.4}
    """

    kind: ClassVar[str] = "quantile"
    q: float | Sequence[float] = field(default=0.5, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        shares = self._shares()
        if not isinstance(self.q, int | float):
            object.__setattr__(self, "q", shares)
        if not shares or not all(0 <= q <= 1 for q in shares) or len(set(shares)) < len(shares):
            raise DefinitionError(
                f"quantile({self.column!r}): q={self.q!r}; expected shares from 0 to 1"
            )

    def _shares(self) -> tuple[float, ...]:
        return (self.q,) if isinstance(self.q, int | float) else tuple(self.q)

    def each(self) -> tuple[Aggregate, ...]:
        if isinstance(self.q, int | float):
            return (self,)
        name = self.name
        return tuple(
            replace(self, q=q, name=None if name is None else f"{name}_{_percent(q)}")
            for q in self.q
        )

    def _name_parts(self) -> tuple[str, ...]:
        return tuple(map(_percent, self._shares()))

    def output_type(self, scope: Scope) -> DataType:
        return Float64

    def finish(self, scope: Scope, merged: Sequence[Column], reading: Reading) -> Finished:
        (q,) = self._shares()
        # axes: rows, bins
        counts = np.stack([or_zero(column) for column in merged], axis=1)
        ends = np.cumsum(counts, axis=1)
        total = ends[:, -1]
        target = q * total
        chosen = np.argmax((ends >= target[:, None]) & (ends > 0), axis=1)
        rows = np.arange(len(counts))
        inside, before = counts[rows, chosen], ends[rows, chosen] - counts[rows, chosen]
        edges = np.array([self.edges[0], *self.edges, self.edges[-1]])
        low, high = edges[chosen], edges[chosen + 1]
        share = (target - before) / np.where(inside > 0, inside, 1)
        values = np.minimum(low + (high - low) * share, high)
        return Finished(Column(values, total > 0))

    def accuracy(self, scope: Scope) -> str:
        widest = max((high - low for low, high in pairwise(self.edges)), default=0.0)
        return (
            f"within the width of its bin, {widest:g} at most; outside of {self.edges[0]:g} to "
            f"{self.edges[-1]:g} that edge"
        )


def _percent(q: float) -> str:
    """Return a share as part of a name: ``p50``, ``p99_9``."""
    return "p" + f"{q * 100:.10g}".replace(".", "_")
