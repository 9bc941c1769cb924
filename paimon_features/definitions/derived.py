"""Derived views: tumbling windows and sessions of a feature view, computed from its tiles.

A feature view answers "as of when?"; a derived view lists closed windows: what each
customer spent on each day, each of a user's sessions. It needs no tiles of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property

from paimon_features.core.documents.published_document import document_digest
from paimon_features.core.errors import DefinitionError
from paimon_features.core.times.durations import option_ms
from paimon_features.core.types.schema import DataType, Int64
from paimon_features.core.windows import (
    CALENDAR_SIZES,
    CalendarUnit,
    Tumbling,
    check_time_zone,
    format_duration,
    parse_duration,
    step_of,
)
from paimon_features.definitions.aggregates import Aggregate, TimeSinceFirst
from paimon_features.definitions.compiled import CompiledView
from paimon_features.definitions.feature_view import FeatureView
from paimon_features.definitions.metadata import check_compiles, check_metadata, metadata

FIRST_EVENT_TIME = "p_oldest"
"""The partial of ``TimeSinceFirst()``: the time of a tile's first event."""
TABLE_PREFIX = "features_"
"""What the name of a derived view's table begins with."""
START_DAY = "start_day"
"""Days since 1970 of a window's start, INT: the partition column of that table."""


@dataclass(frozen=True, slots=True)
class DerivedFeature:
    """One feature of a derived view: an aggregate over each of its windows."""

    name: str
    aggregate: Aggregate
    partials: tuple[str, ...]
    type: DataType


@dataclass(frozen=True)
class CompiledDerived:
    """A compiled derived view.

    ``view`` is the view whose tiles are read, extended by the partials of these features.
    ``windows`` are tumbling windows; for sessions it is None, and ``gap_ms`` is set.
    """

    name: str
    view: CompiledView
    features: tuple[DerivedFeature, ...]
    windows: Tumbling | None
    gap_ms: int | None
    start: str
    end: str
    count: str | None

    @property
    def columns(self) -> Mapping[str, DataType]:
        """The columns of the rows, in order: keys, start, end, for sessions the count, features."""
        counted = {} if self.count is None else {self.count: Int64}
        return {
            **self.view.keys,
            self.start: Int64,
            self.end: Int64,
            **counted,
            **{feature.name: feature.type for feature in self.features},
        }

    @property
    def partials(self) -> tuple[str, ...]:
        """The partials that are read of each tile, each once, the hidden ones first."""
        used = {name for feature in self.features for name in feature.partials}
        if self.windows is None and self.view.tile_ms > 1:
            used.add(FIRST_EVENT_TIME)
        hidden = {"p_event_time_max", "p_rows"}
        return tuple(p.name for p in self.view.partials if p.name in used | hidden)

    @property
    def table(self) -> str:
        """The table that its rows are written to."""
        return TABLE_PREFIX + self.name

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the definition: equal if the same tiles result in the same rows."""
        document = {
            "tiles": self.view.fingerprint,
            "windows": repr(self.windows),
            "gap_ms": self.gap_ms,
            "features": {f.name: [repr(f.aggregate), f.type.text] for f in self.features},
        }
        return document_digest(document)[:16]


@dataclass(frozen=True, eq=False)
class DerivedView(ABC):
    """Shared by ``TumblingView`` and ``SessionView``.

    ``features`` are aggregates without windows and offsets, whose partials the view's tiles
    contain; by default all of the view's. Each has the value of a window of the kind ``exact``
    over the events from the start (inclusive) to the end (exclusive), read at the
    end: decay and ``TimeSinceLast`` are relative to the end. ``Rate`` needs a fixed length:
    over tumbling windows of a duration, it names that duration as its window.
    """

    name: str
    view: FeatureView
    _: KW_ONLY
    features: Sequence[Aggregate] | None = None
    description: str = ""
    owner: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_metadata("derived view", self)
        check_compiles("derived view", self)

    @cached_property
    @abstractmethod
    def compiled(self) -> CompiledDerived:
        """The compiled derived view."""

    @property
    def table(self) -> str:
        """The table that its rows are written to."""
        return TABLE_PREFIX + self.name

    @abstractmethod
    def _windows_document(self) -> dict[str, object]:
        """Return the parameters of its windows, for the registry."""

    def to_document(self) -> dict[str, object]:
        """Return the canonical JSON form, as in the registry."""
        compiled = self.compiled
        return {
            "kind": "derived_view",
            "name": self.name,
            "view": self.view.name,
            **self._windows_document(),
            "features": {
                f.name: {"type": f.type.text, "partials": list(f.partials)}
                for f in compiled.features
            },
            **metadata(self),
        }

    # -- for subclasses -------------------------------------------------------------------

    def _compile(
        self,
        windows: Tumbling | None,
        gap_ms: int | None,
        start: str,
        end: str,
        count: str | None = None,
    ) -> CompiledDerived:
        length_ms = None if windows is None else windows.length_ms
        aggregates = self._aggregates(length_ms)
        view = self._view_with(aggregates, length_ms)
        compiled = CompiledDerived(
            self.name,
            view,
            tuple(
                DerivedFeature(
                    one.stem,
                    one,
                    tuple(p.name for p in one.partials(view.scope)),
                    one.output_type(view.scope),
                )
                for one in aggregates
            ),
            windows,
            gap_ms,
            start,
            end,
            count,
        )
        column_names = [*view.keys, start, end, *([count] if count else []), START_DAY]
        for feature in compiled.features:
            if feature.name in column_names:
                raise DefinitionError(
                    f"two columns are named {feature.name!r}; give the feature another name="
                )
            column_names.append(feature.name)
        if len(set(column_names)) < len(column_names):
            raise DefinitionError(
                f"the keys {', '.join(view.keys)} have the names of columns of a derived view: "
                f"{start}, {end}, {count or START_DAY}, {START_DAY}"
            )
        return compiled

    def _aggregates(self, length_ms: int | None) -> list[Aggregate]:
        """Return the aggregates, one feature each, over the windows of the derived view only."""
        if self.features is None:
            bare_aggregates: list[Aggregate] = []
            for one in (a for given in self.view.features for a in given.each()):
                try:
                    bare = replace(one, windows=_windows(length_ms), offset=None)
                except DefinitionError as error:
                    error.add_note("pass features= without this aggregate")
                    raise
                if bare not in bare_aggregates:
                    bare_aggregates.append(bare)
            return bare_aggregates
        if not self.features:
            raise DefinitionError("features=[]; expected aggregates, or None for all of the view's")
        for given in self.features:
            if given.lengths not in ((None,), (length_ms,)) or given.offset is not None:
                raise DefinitionError(
                    f"{given.stem}: windows={given.windows!r}, offset={given.offset!r}; a derived "
                    "view has windows of its own: leave both out"
                )
        return [one for given in self.features for one in given.each()]

    def _view_with(self, aggregates: Sequence[Aggregate], length_ms: int | None) -> CompiledView:
        """Return the view with these aggregates added; its tiles have to contain their partials.

        Raises
        ------
        DefinitionError
            If the view would need other tiles.
        """
        view = self.view
        extended = replace(
            view,
            # exact windows have no hops that would have to be compatible
            kind="exact",
            resolution=None,
            features=[
                *view.features,
                *(
                    # each needs a name that differs from the view's own features
                    replace(one, windows=_windows(length_ms), name=f"{one.stem}_of_{self.name}_{i}")
                    for i, one in enumerate(aggregates)
                ),
            ],
        ).compiled
        for one in aggregates:
            missing = [
                p.name for p in one.partials(extended.scope) if p.name not in view.compiled.partial
            ]
            if missing:
                raise DefinitionError(
                    f"{one.stem}: the tiles of feature view {view.name!r} do not contain "
                    f"{', '.join(missing)}; add this aggregate to the view, over any window"
                )
        if extended.fingerprint != view.compiled.fingerprint:
            raise DefinitionError(
                f"with these aggregates, feature view {view.name!r} would skip other events; "
                "give them the bound= and where= that they have in the view"
            )
        return extended


def _windows(length_ms: int | None) -> list[str | None]:
    """Return the windows of an aggregate of a derived view.

    Sessions and units have no fixed length.
    """
    return [None if length_ms is None else format_duration(length_ms)]


@dataclass(frozen=True, eq=False)
class TumblingView(DerivedView):
    """One row per entity and tumbling window with at least one event.

    ``size`` is a multiple of the view's tile, such as ``"1h"`` or ``"7d"``: windows
    ``[k * size, (k + 1) * size)`` since 1970 in UTC (so weeks of ``"7d"`` begin on Thursday).
    Or it is ``"day"``, ``"week"`` (from Monday), ``"month"`` or ``"year"`` in ``time_zone``, by
    default that of the view. The rows contain the keys, ``window_start_ms``, ``window_end_ms``
    (exclusive) and the features.

    Retracted events do not count: a window in which none remains has no row.

    >>> from paimon_features import Entity, EventSource, Float64, Int64, Sum
    >>> orders = EventSource("orders", schema={"id": Int64, "t": Int64, "x": Float64},
    ...     event_time="t")
    >>> spend = FeatureView("spend", source=orders, entity=Entity("customer", keys={"id": Int64}),
    ...     features=[Sum("x", windows=["30d"], scale=2)])
    >>> list(TumblingView("daily_spend", spend, "1d").compiled.columns)
    ['id', 'window_start_ms', 'window_end_ms', 'sum_x']

    Raises
    ------
    DefinitionError
        For a size that is not a multiple of the tile, a calendar unit without a time zone,
        aggregates whose partials the view's tiles do not contain.
    """

    size: str
    _: KW_ONLY
    time_zone: str | None = None

    @cached_property
    def compiled(self) -> CompiledDerived:
        return self._compile(self._windows(), None, "window_start_ms", "window_end_ms")

    def _windows(self) -> Tumbling:
        tile_ms = parse_duration(self.view.tile)
        if self.size not in CALENDAR_SIZES:
            if self.time_zone is not None:
                raise DefinitionError(
                    f"size={self.size!r} counts from 1970 in UTC, so time_zone="
                    f"{self.time_zone!r} has no effect; local windows are "
                    f"{', '.join(CALENDAR_SIZES)}"
                )
            size_ms = self._duration()
            if size_ms % tile_ms:
                raise DefinitionError(
                    f"size={self.size!r} is not a multiple of the view's tile, {self.view.tile}"
                )
            return Tumbling(size_ms, size_ms)
        zone = self.time_zone or self.view.time_zone
        if zone is None:
            raise DefinitionError(
                f"size={self.size!r} begins at a local midnight; give a time_zone=, for example "
                "'Europe/London' or 'UTC'"
            )
        check_time_zone(zone)
        step_ms = max(tile_ms, step_of(zone))
        if step_ms % tile_ms:
            raise DefinitionError(
                f"days of {zone} begin at multiples of {format_duration(step_ms)}, which the "
                f"view's tile, {self.view.tile}, does not divide"
            )
        return Tumbling(CALENDAR_SIZES[self.size], step_ms, zone)

    def _duration(self) -> int:
        try:
            return parse_duration(self.size)
        except DefinitionError as error:
            raise DefinitionError(
                f"size={self.size!r} is neither a calendar unit ({', '.join(CALENDAR_SIZES)}) nor "
                f"a duration: {error}"
            ) from None

    def _windows_document(self) -> dict[str, object]:
        windows = self.compiled.windows
        assert windows is not None
        calendar = isinstance(windows.size, CalendarUnit)
        return {"size": windows.name, "time_zone": windows.time_zone if calendar else None}


@dataclass(frozen=True, eq=False)
class SessionView(DerivedView):
    """One row per session: a run of an entity's events, each less than ``gap`` after the last.

    The rows contain the keys, ``session_start_ms`` (the first event), ``session_end_ms`` (the last
    event plus the gap: from then on a new event begins a new session), ``session_events`` and
    the features.

    Sessions are derived from the first and last event time of each tile, so ``gap`` is at least a
    tile, and the view has ``TimeSinceFirst()`` over any window among its features, which keeps
    the first; a tile of ``"1ms"`` needs neither. For sources with retractions, only such a tile
    shows which events remain: one with as many retractions as events contains none.

    >>> from paimon_features import Count, Entity, EventSource, Int64
    >>> clicks = EventSource("clicks", schema={"user": Int64, "t": Int64}, event_time="t")
    >>> visits = FeatureView("visits", source=clicks, entity=Entity("user", keys={"user": Int64}),
    ...     features=[Count(windows=["1d"]), TimeSinceFirst(windows=["1d"])])
    >>> list(SessionView("sessions", visits, "30min", features=[Count()]).compiled.columns)
    ['user', 'session_start_ms', 'session_end_ms', 'session_events', 'count']

    Raises
    ------
    DefinitionError
        For a gap shorter than the tile, a view that does not keep first event times,
        aggregates whose partials the view's tiles do not contain.
    """

    gap: str

    @cached_property
    def compiled(self) -> CompiledDerived:
        gap_ms, tile_ms = option_ms("gap", self.gap), parse_duration(self.view.tile)
        if gap_ms < tile_ms:
            raise DefinitionError(
                f"gap={self.gap!r} is shorter than the view's tile, {self.view.tile}: sessions "
                "within a tile cannot be separated; choose a longer gap, or a shorter tile"
            )
        if tile_ms > 1:
            self._check_first_event_time()
        return self._compile(
            None, gap_ms, "session_start_ms", "session_end_ms", count="session_events"
        )

    def _check_first_event_time(self) -> None:
        view = self.view
        if view.source.retraction is not None:
            raise DefinitionError(
                f"events of source {view.source.name!r} may be retracted "
                f"(retraction={view.source.retraction!r}), and a tile of {view.tile} does not "
                "contain the times of the remaining events; a view with tile='1ms' does"
            )
        kept = view.compiled.partial.get(FIRST_EVENT_TIME)
        if kept is None or kept.expression != TimeSinceFirst().partials({})[0].expression:
            raise DefinitionError(
                f"the tiles of feature view {view.name!r} do not keep the time of their first "
                "event; add pf.TimeSinceFirst(windows=['1d']) to its features, over any window "
                "(or use a view with tile='1ms')"
            )

    def _windows_document(self) -> dict[str, object]:
        assert self.compiled.gap_ms is not None
        return {"session_gap": format_duration(self.compiled.gap_ms)}
