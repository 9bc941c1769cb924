"""Where the values of float moments lie: the ``center=`` that ``plan`` proposes from events."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paimon_features.core.columns.column import Column
from paimon_features.core.expressions import evaluate
from paimon_features.definitions import CompiledFeature, CompiledView
from paimon_features.definitions.aggregates import Kurtosis, Skewness, Variance
from paimon_features.lake import Lake, iter_batches

SAMPLE = 100_000
"""How many events are looked at."""
FAR = 100.0
"""A condition number from which on another center is worth a new generation: two digits lost."""


@dataclass(frozen=True, slots=True)
class CenterProposal:
    """What to give as ``center=`` of an aggregate; ``digits`` are lost by the one it has."""

    stem: str
    center: float
    digits: int
    events: int

    def __str__(self) -> str:
        return (
            f"{self.stem}: by the values of {self.events:,} events its center= is far from their "
            f"mean, which costs {self.digits} of 16 digits; center={self.center!r} is near"
        )


def proposed_centers(
    lake: Lake, view: CompiledView, sample: int = SAMPLE
) -> Iterator[CenterProposal]:
    """Better centers of a view's float moments, by some events of its source; none without any.

    Moments are taken around ``center``; the farther it is from the mean, in spreads, the more
    digits their sums lose.
    """
    moments = {f.aggregate.stem: f for f in view.features if _of_floats(f, view)}
    if not moments or not lake.exists(view.source.table):
        return
    shifted = {stem: view.expressions[f.partials[0]] for stem, f in moments.items()}
    where = [] if view.where is None else [view.where]
    names = sorted(set().union(*(e.columns for e in (*shifted.values(), *where))))
    sampled: dict[str, list[npt.NDArray[np.float64]]] = {stem: [] for stem in moments}
    rows = 0
    for batch in iter_batches(lake, view.source.table, names):
        columns = {name: Column.from_arrow(batch.column(name)) for name in names}
        members = np.ones(batch.num_rows, np.bool_)
        for condition in where:
            held = evaluate(condition, columns, batch.num_rows)
            members = held.values.astype(np.bool_) & held.mask
        for stem, expression in shifted.items():
            value = evaluate(expression, columns, batch.num_rows)
            sampled[stem].append(value.values[value.mask & members & np.isfinite(value.values)])
        rows += batch.num_rows
        if rows >= sample:
            break
    for stem, feature in moments.items():
        values = np.concatenate([*sampled[stem], np.zeros(0)])
        center: float = feature.aggregate.center  # type: ignore[attr-defined]
        if proposal := _proposal(stem, values, center):
            yield proposal


def _of_floats(feature: CompiledFeature, view: CompiledView) -> bool:
    aggregate = feature.aggregate
    return (
        isinstance(aggregate, Variance | Skewness | Kurtosis)
        and aggregate.scale_of(view.scope) is None
    )


def _proposal(stem: str, shifted: npt.NDArray[np.float64], center: float) -> CenterProposal | None:
    """Return the mean, as roughly as the spread allows; None where the center does."""
    spread = float(shifted.std()) if len(shifted) > 1 else 0.0
    if spread == 0.0:
        return None
    mean = float(shifted.mean())
    condition = 1 + (mean / spread) ** 2
    if condition < FAR:
        return None
    near = round(center + mean, -math.floor(math.log10(spread)))
    return CenterProposal(stem, near, round(math.log10(condition)), len(shifted))
