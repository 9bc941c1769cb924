"""From merged partials to feature values: known entities, expiry, and finished values.

All engines use it to turn merged partials into features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from paimon_features.core.columns.column import Column, numpy_type
from paimon_features.core.types.array_types import Array, Bools, Ints
from paimon_features.core.types.statuses import Status
from paimon_features.core.windows import Window
from paimon_features.definitions import CompiledFeature, CompiledView
from paimon_features.definitions.aggregates import EVENT_TIME_MAX, Finished
from paimon_features.definitions.aggregates.fold import Columns
from paimon_features.definitions.finishing import by_window, entity_statuses, finish_window
from paimon_features.definitions.own_events import OwnEvents


@dataclass(frozen=True, slots=True)
class JoinResult:
    """Features of one view, one value per row, and a status (``Status``) for each."""

    columns: dict[str, Column]
    statuses: dict[str, npt.NDArray[np.int8]]

    def table(self, features: Sequence[CompiledFeature]) -> pa.Table:
        """Return as an Arrow table: a column per feature, then a status column per feature."""
        columns = {f.name: self.columns[f.name].to_arrow(f.type.arrow) for f in features}
        statuses = {f"{f.name}__status": pa.array(self.statuses[f.name]) for f in features}
        return pa.table({**columns, **statuses})


class ResultBuilder:
    """Feature values and statuses of ``rows`` rows, filled some rows (``target``) at a time.

    Rows without a ``set_status`` call are MISSING. ``own_events`` are the rows themselves, where
    they are events of the view's source, to be counted. The value of a window without events does
    not depend on the time: it is prefilled, so that such rows need no ``finish`` (``mark_empty``).
    """

    def __init__(
        self,
        view: CompiledView,
        features: Sequence[CompiledFeature],
        rows: int,
        own_events: OwnEvents | None = None,
    ) -> None:
        self.view, self.features, self._own = view, tuple(features), own_events
        self._status = np.full(rows, Status.MISSING, np.int8)
        self._windows = by_window(features)
        self._empty_values = {f.name: _empty_values(view, f) for f in self.features}
        self._values = {
            f.name: _filled(rows, self._empty_values[f.name], numpy_type(f.type))
            for f in self.features
        }
        self._empty = {
            window: np.zeros(rows, np.bool_)
            for window, sharing in self._windows.items()
            if any(not self._empty_values[f.name].mask[0] for f in sharing)
        }
        # where a window has events but the feature no value; created on demand
        self._nulls: dict[str, Bools] = {}
        self._ill: dict[str, Bools] = {}

    def set_status(self, target: Ints | slice, as_of_ms: Ints, newest: Ints) -> Bools:
        """Set statuses from the newest event before the horizon; return the PRESENT mask."""
        statuses = entity_statuses(self.view, as_of_ms, newest)
        self._status[target] = statuses
        return np.equal(statuses, Status.PRESENT)

    def mark_empty(self, window: Window, target: Ints | slice, some: Ints | slice) -> None:
        """Mark these rows, except ``some`` (positions in ``target``), as having no events."""
        if window in self._empty:
            empty = np.ones(len(self._status[target]), np.bool_)
            empty[some] = False
            self._empty[window][target] = empty

    def finish(
        self,
        target: Ints | slice,
        features: Sequence[CompiledFeature],
        merged: Columns,
        as_of_ms: Ints,
        present: Bools,
    ) -> None:
        """Finish and store one window's features from its partials and ``EVENT_TIME_MAX``."""
        own_events = None if self._own is None else self._own.part(target)
        results = finish_window(self.view, features, merged, as_of_ms, own_events)
        for feature, finished in zip(features, results, strict=True):
            is_known = present
            if own_events is not None and feature.aggregate.counts_own_event:
                is_known = present | own_events.member
            self._put(feature, target, finished, is_known)

    def results(self) -> JoinResult:
        """Return all results."""
        columns, statuses = {}, {}
        of_entities = self._status
        of_events = of_entities
        if self._own is not None:
            # no entity with an event is unknown or expired
            of_events = np.where(self._own.member, np.int8(Status.PRESENT), of_entities)
        for window, features in self._windows.items():
            for feature in features:
                name = feature.name
                status = of_events if feature.aggregate.counts_own_event else of_entities
                valid = present = status == Status.PRESENT
                if window in self._empty and not self._empty_values[name].mask[0]:
                    valid = present & ~self._empty[window]
                null, ill = self._nulls.get(name), self._ill.get(name)
                columns[name] = Column(self._values[name], valid if null is None else valid & ~null)
                statuses[name] = status
                if ill is not None:
                    statuses[name] = np.where(ill, np.int8(Status.ILL_CONDITIONED), status)
        return JoinResult(columns, statuses)

    def _put(
        self, feature: CompiledFeature, target: Ints | slice, done: Finished, present: Bools
    ) -> None:
        self._values[feature.name][target] = done.column.values
        for masks, mask in (
            (self._nulls, None if done.column.valid is None else ~done.column.valid),
            (self._ill, done.ill_conditioned),
        ):
            if mask is not None and (mask := mask & present).any():
                rows = masks.setdefault(feature.name, np.zeros(len(self._status), np.bool_))
                rows[target] = mask


def _empty_values(view: CompiledView, feature: CompiledFeature) -> Column:
    """Return the feature's value over a window without events, one row."""
    names = {EVENT_TIME_MAX.name, *feature.partials}
    nulls = {name: Column.nulls(1, view.partial[name].type) for name in names}
    (finished,) = finish_window(view, [feature], nulls, np.zeros(1, np.int64))
    return finished.column


def _filled(rows: int, value: Column, kind: np.dtype[Any]) -> Array:
    """Return an array filled with this value; arbitrary where it is null."""
    out: Array = np.zeros(rows, kind)
    # do not touch memory that is already zero
    if value.mask[0] and (kind.hasobject or value.values.astype(kind).tobytes().strip(b"\0")):
        out.fill(value.values[0])
    return out
