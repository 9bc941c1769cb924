"""Reference implementation of the materializer's arrays: one record as a dictionary of cells.

A cell is a dictionary of partials; rows are merged one by one, in Python's arithmetic. Next to
each float sum it keeps the sum of the absolute values, which bounds the effect of another order
of additions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from paimon_features.core.windows import floor_ms
from paimon_features.definitions import CompiledView
from paimon_features.definitions.aggregates import Merge, Partial
from paimon_features.definitions.aggregates.fold import NEVER_MS
from paimon_features.testing.reference.merges import merged

Partials = Mapping[str, Any]
Cell = tuple[int, int]
"""Level and tile index."""
LIFETIME: Cell = (127, 0)
_EPS = 2.0**-52
_FOLDS = 64
"""An upper bound of how often a test updates the weights of one cell; each update rounds once."""


def _size(name: str) -> str:
    return f"|{name}|"


class ReferenceRecord:
    """The expected content of the online store for one entity."""

    def __init__(self, view: CompiledView) -> None:
        self.view = view
        self.cells: dict[Cell, dict[str, Any]] = {}
        self.snapshot = -1
        self.event_high = self.pruned_high = self.bucket_high = NEVER_MS

    def apply(self, rows: Iterable[tuple[int, Partials]], snapshot: int, high_ms: int) -> bool:
        """Apply the new (snapshot, row) pairs; False if there were none."""
        new = [row for of, row in rows if of > self.snapshot]
        if not new:
            return False
        self.snapshot = snapshot
        self.bucket_high = max(self.bucket_high, high_ms)
        contributions = list(self.cells.items())
        for row in new:
            self.event_high = max(self.event_high, row["p_event_time_max"])
            for level, step in enumerate(self.view.levels_ms):
                partials = {p.name: row[p.name] for p in self.view.partials}
                sizes = {_size(p.name): abs(row[p.name] or 0.0) for p in self._float_sums()}
                partials.update(sizes)
                contributions.append(((level, row["tile_start"] // step), partials))
        self.cells = {}
        for cell, partials in contributions:
            self._add(cell, partials)
        return True

    def bound(self, cell: Cell, name: str) -> float:
        """Return the tolerance of a partial, ``n * eps * sum(|v|)``; 0 where it must be equal."""
        partials = self.cells[cell]
        return float((partials["p_rows"] + _FOLDS) * _EPS * partials.get(_size(name), 0.0))

    def is_worth_keeping(self) -> bool:
        """Return whether the entity is known to some allowed read."""
        q = np.array([self.bucket_high - self.view.margin_ms])
        return bool(self.cells) or self.event_high >= self.view.known_from(q)[0]

    def _add(self, cell: Cell, partials: Partials) -> None:
        level, index = cell
        if cell != LIFETIME:
            step = self.view.levels_ms[level]
            if (index + 1) * step <= self.view.keep_from(level, self.bucket_high):
                if level < len(self.view.levels_ms) - 1:
                    return
                if not self.view.has_lifetime:
                    self.pruned_high = max(self.pruned_high, partials["p_event_time_max"])
                    return
                cell = LIFETIME
        known = self.cells.get(cell)
        if known is not None:
            self.cells[cell] = self._merged(known, partials)
            return
        alone = {p.name: merged(p, partials[p.name], None) for p in self.view.partials}
        self.cells[cell] = {**partials, **alone}

    def _merged(self, left: Partials, right: Partials) -> dict[str, Any]:
        out = {}
        newest = max(self._end(left), self._end(right))
        ages = newest - self._end(left), newest - self._end(right)
        for partial in self.view.partials:
            a, b = left[partial.name], right[partial.name]
            size = _size(partial.name)
            if partial.merge is Merge.DECAYED_SUM:
                assert partial.half_life_ms is not None
                half_life_ms = partial.half_life_ms
                a, b = _decayed(a, ages[0], half_life_ms), _decayed(b, ages[1], half_life_ms)
                out[size] = left[size] * _weight(ages[0], half_life_ms)
                out[size] += right[size] * _weight(ages[1], half_life_ms)
            elif size in left:
                out[size] = left[size] + right[size]
            out[partial.name] = merged(partial, a, b)
        return out

    def _float_sums(self) -> list[Partial]:
        sums = (Merge.SUM, Merge.DECAYED_SUM)
        return [p for p in self.view.partials if p.type.is_float and p.merge in sums]

    def _end(self, partials: Partials) -> int:
        tile_ms = self.view.tile_ms
        newest: int = partials["p_event_time_max"]
        return floor_ms(newest, tile_ms) + tile_ms


def _decayed(value: float | None, age_ms: int, half_life_ms: int) -> float | None:
    return None if value is None else value * _weight(age_ms, half_life_ms)


def _weight(age_ms: int, half_life_ms: int) -> float:
    weight: float = 2.0 ** (-age_ms / half_life_ms)
    return weight
