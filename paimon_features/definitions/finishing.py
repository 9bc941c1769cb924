"""From merged partials to features: who is known, and the values of windows.

Every path that folds tiles with NumPy ends here: reads of the online store, point-in-time joins
(also those of Flink), derived views, explanations and ``evaluate``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from paimon_features.core.columns.column import Column
from paimon_features.core.types.array_types import Bools, Ints
from paimon_features.core.types.statuses import Status
from paimon_features.core.windows import Window
from paimon_features.definitions.aggregates import Aggregate, Finished, Reading
from paimon_features.definitions.aggregates.fold import Columns, newest_tile_end
from paimon_features.definitions.compiled import CompiledFeature, CompiledView
from paimon_features.definitions.own_events import OwnEvents


class FinishedFeature(Protocol):
    """What ``finish`` needs of a feature."""

    @property
    def aggregate(self) -> Aggregate: ...
    @property
    def partials(self) -> tuple[str, ...]: ...


def entity_statuses(
    view: CompiledView, as_of_ms: int | Ints, newest_ms: Ints
) -> npt.NDArray[np.int8]:
    """Return PRESENT, EXPIRED or MISSING for each row.

    ``newest_ms`` is the time of the entity's newest event before the view's horizon, NEVER_MS where
    there is none.
    """
    is_present = newest_ms >= view.known_from(as_of_ms)
    statuses = np.where(is_present, np.int8(Status.PRESENT), np.int8(Status.MISSING))
    if view.ttl_ms is not None:
        statuses[is_present & (newest_ms < view.horizon(as_of_ms) - view.ttl_ms)] = Status.EXPIRED
    return statuses


def finish(
    view: CompiledView,
    features: Sequence[FinishedFeature],
    merged: Columns,
    read_ms: int | Ints,
    window_ms: int | None,
    own_events: OwnEvents | None = None,
) -> Iterator[Finished]:
    """Yield the values of features of windows of one length.

    ``merged`` contains their partials and ``EVENT_TIME_MAX``. Values decay to ``read_ms``, one time
    for all rows or one for each. ``own_events`` are the events of the requests, one per row.
    """
    since_ms = read_ms - newest_tile_end(merged, view.tile_ms)
    for feature in features:
        columns, since = [merged[name] for name in feature.partials], since_ms
        if own_events is not None and feature.aggregate.counts_own_event:
            partials = [view.partial[name] for name in feature.partials]
            times = np.broadcast_to(read_ms, since_ms.shape)
            columns, since = own_events.join(partials, columns, times, since_ms)
        reading = Reading(read_ms, since, window_ms)
        yield feature.aggregate.finish(view.scope, columns, reading)


def finish_window(
    view: CompiledView,
    features: Sequence[CompiledFeature],
    merged: Columns,
    as_of_ms: int | Ints,
    own_events: OwnEvents | None = None,
) -> Iterator[Finished]:
    """Yield the values of features of one window; see ``finish``."""
    read_ms = features[0].window.read_time(as_of_ms)
    return finish(view, features, merged, read_ms, features[0].window_ms, own_events)


def by_window(features: Sequence[CompiledFeature]) -> dict[Window, list[CompiledFeature]]:
    """Group features by window: they share its range and its folds."""
    windows: dict[Window, list[CompiledFeature]] = {}
    for feature in features:
        windows.setdefault(feature.window, []).append(feature)
    return windows


class FeatureColumn(NamedTuple):
    """A feature of some rows, and where its value is too ill-conditioned to be returned."""

    column: Column
    ill_conditioned: Bools | None


@dataclass(frozen=True, slots=True, eq=False)
class FinishGroup:
    """Features of one aggregate over several windows, which are finished in one call.

    ``windows`` are the numbers of their windows.
    """

    aggregate: Aggregate
    features: tuple[CompiledFeature, ...]
    windows: list[int]
    length_ms: int | None

    @classmethod
    def of(
        cls, features: Sequence[CompiledFeature], numbers: Mapping[Window, int]
    ) -> list[FinishGroup]:
        """Group features; ``numbers`` are those of the windows."""
        alike: dict[tuple[int, int | None], list[CompiledFeature]] = {}
        for feature in features:
            length_ms = feature.window_ms if feature.aggregate.by_length else None
            alike.setdefault((id(feature.aggregate), length_ms), []).append(feature)
        return [
            cls(
                members[0].aggregate,
                tuple(members),
                [numbers[feature.window] for feature in members],
                members[0].window_ms if len({f.window_ms for f in members}) == 1 else None,
            )
            for members in alike.values()
        ]

    def finish(
        self,
        view: CompiledView,
        merged: Sequence[Column],
        as_of_ms: int,
        read_ms: Ints,
        newest_end_ms: Ints,
        null: Bools | None,
        own_events: OwnEvents | None = None,
    ) -> Iterator[tuple[str, FeatureColumn]]:
        """Yield the features of a read by name, null where ``null``.

        ``own_events`` are the events of the requests, one per row; where one is counted, no feature
        is null because the entity is unknown or expired.

        ``merged`` are the aggregate's partials of shape ``(windows * rows,)``. ``read_ms`` is the
        read time of each window, shape ``(windows, 1)``, and ``newest_end_ms`` the end of the
        newest tile in it, shape ``(windows, rows)``.
        """
        rows = newest_end_ms.shape[1]
        since_ms = (read_ms - newest_end_ms).ravel()
        if own_events is not None and self.aggregate.counts_own_event:
            partials = [view.partial[name] for name in self.features[0].partials]
            merged, since_ms = own_events.join(partials, merged, np.repeat(read_ms, rows), since_ms)
            null = None if null is None else null & ~own_events.member
        reading = Reading(
            as_of_ms if (read_ms == as_of_ms).all() else np.repeat(read_ms, rows),
            since_ms,
            self.length_ms,
        )
        finished = self.aggregate.finish(view.scope, merged, reading)
        values, valid = finished.column.values, finished.column.valid
        ill_conditioned = finished.ill_conditioned
        if null is not None:
            not_null = np.tile(~null, len(self.features))
            valid = not_null if valid is None else valid & not_null
            ill_conditioned = None if ill_conditioned is None else ill_conditioned & not_null
        for i, feature in enumerate(self.features):
            part = slice(i * rows, (i + 1) * rows)
            column = Column(values[part], None if valid is None else valid[part])
            ill = None if ill_conditioned is None else ill_conditioned[part]
            yield feature.name, FeatureColumn(column, ill)
