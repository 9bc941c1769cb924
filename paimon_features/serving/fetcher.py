"""The online read: everything that a request needs in one command to the store.

View states, the markers of the buckets that the entities are in, and the records are read at one
time. So a value is never put together from two epochs, and a switch in between is seen: then the
request is read again from the new epoch.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from paimon_features.aggregates.fold import NEVER_MS, Ints
from paimon_features.buckets import bucket_of
from paimon_features.columns import Column
from paimon_features.definitions import (
    CompiledFeature,
    CompiledView,
    FeatureRef,
    Output,
    Selection,
)
from paimon_features.definitions.interaction import CompiledInteraction
from paimon_features.definitions.request import request_columns
from paimon_features.definitions.selection import Codes, Computed
from paimon_features.errors import RequestError, StoreNotReadyError, UnknownNameError
from paimon_features.online.codec import RecordLayout
from paimon_features.online.expiry import may_miss_records
from paimon_features.online.keys import BucketKeys, ViewKeys, entity_bytes, key_arrays
from paimon_features.online.markers import Content, Marker, ViewState
from paimon_features.online.store import Clock, OnlineStore
from paimon_features.serving.response import Freshness, OnlineResponse, Status, status_names
from paimon_features.serving.windows import WindowCells, WindowFeatures, newest_before
from paimon_features.windows import MAX_TIME_MS, MIN_TIME_MS

__all__ = ["FeatureFetcher", "Freshness", "OnlineResponse", "Status"]

_ATTEMPTS = 5
_PLANS = 256
"""How many selections are remembered; services are few, and others may ask for anything."""


class FeatureFetcher:
    """Reads features of ``views`` of a project from an online store.

    Keep it: it remembers layouts and which epoch is read. Safe to use from several threads.
    ``clock`` is the host's clock, by which staleness is judged; the time of a read is given
    with each call.
    """

    def __init__(
        self,
        project: str,
        views: Iterable[CompiledView],
        store: OnlineStore,
        *,
        clock: Clock = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._store = store
        self._clock = clock
        self._views = {view.name: _View(project, view) for view in views}
        self._plans: dict[Selection, _Plan] = {}

    def get(
        self,
        refs: Sequence[Output],
        entities: Mapping[str, object],
        q_ms: int,
        request: Mapping[str, object] | None = None,
    ) -> OnlineResponse:
        """The features of the entities at ``q_ms`` (UTC ms; an event at ``q_ms`` is not in).

        ``entities`` maps each key column to a sequence, all of one length: lists, NumPy, Arrow.
        ``request`` maps each request input of the interactions to a value for all entities, or
        to a sequence with one for each.

        Raises
        ------
        RequestError
            For entities or request inputs that do not fit, or a ``q_ms`` that lies too far
            before the newest applied event (or before the clock, once records may have left the
            store): what such a read needs is no longer here, and the lake answers it. Also for
            a view with exact windows over tiles, which the online store cannot tell.
        UnknownNameError
            For a view or feature that is not there.
        StoreNotReadyError
            If the store holds no complete epoch of a view, or one of another definition.
        OnlineStoreError
            If the store does not answer.
        """
        if not MIN_TIME_MS <= q_ms <= MAX_TIME_MS:
            raise RequestError(f"q_ms={q_ms}: expected UTC milliseconds within the years 1 to 9999")
        plan = self._plan(Selection.of(refs))
        selection = plan.selection
        lookups = [_Lookup(self._views[name], entities) for name in plan.views]
        counts = {lookup.count for lookup in lookups}
        if len(counts) > 1:
            raise RequestError(f"entity keys of different lengths: {sorted(counts)}")
        rows = lookups[0].count
        inputs = request_columns(selection.inputs, request, rows)
        self._read(lookups)
        clock_ms = self._clock()
        answers = {
            name: lookup.answer(features, q_ms, clock_ms)
            for lookup, (name, features) in zip(lookups, plan.views.items(), strict=True)
        }
        keys = {name: a for lookup in lookups for name, a in lookup.key_columns().items()}
        values, statuses = _columns(selection, answers, inputs, rows)
        return OnlineResponse(
            q_ms,
            pa.table([*keys.values(), *values], names=[*keys, *selection.names]),
            pa.table(statuses, names=selection.names),
            {name: answer.event_times for name, answer in answers.items()},
            {name: answer.freshness for name, answer in answers.items()},
        )

    def _plan(self, selection: Selection) -> _Plan:
        plan = self._plans.get(selection)
        if plan is None:
            wanted = self._wanted(selection.refs)
            views = {n: WindowFeatures(self._views[n].view, found) for n, found in wanted.items()}
            plan = _Plan(selection, views)
            if len(self._plans) >= _PLANS:
                self._plans = {}
            self._plans[selection] = plan
        return plan

    def _wanted(self, refs: Sequence[FeatureRef]) -> dict[str, list[CompiledFeature]]:
        wanted: dict[str, list[CompiledFeature]] = {}
        for ref in refs:
            of = self._views.get(ref.view)
            if of is None:
                raise UnknownNameError.of("feature view", ref.view, self._views)
            of.view.check_online()
            feature = of.view.feature(ref.feature)
            if feature is None:
                known = [f"{ref.view}:{f.name}" for f in of.view.features]
                raise UnknownNameError.of("feature", f"{ref.view}:{ref.feature}", known)
            wanted.setdefault(ref.view, []).append(feature)
        return wanted

    def _read(self, lookups: Sequence[_Lookup]) -> None:
        """Fill the lookups, all from the epochs that are current at the time of the read."""
        states = {lookup.of: lookup.of.guess for lookup in lookups}
        unknown = [of for of, state in states.items() if state is None]
        if unknown:
            found = self._store.get_many([of.keys.state for of in unknown])
            states.update((of, of.see(raw)) for of, raw in zip(unknown, found, strict=True))
        for lookup in lookups:
            lookup.aim(states[lookup.of] or ViewState())
        for _ in range(_ATTEMPTS):
            asked = [lookup.keys() for lookup in lookups]
            found = self._store.get_many([key for keys in asked for key in keys])
            moved = False
            for lookup, keys in zip(lookups, asked, strict=True):
                own, found = found[: len(keys)], found[len(keys) :]
                # what was read counts only if it was the current epoch at that very time
                if lookup.aim(lookup.of.see(own[0])):
                    moved = True
                else:
                    lookup.fill(own)
            if not moved:
                return
        raise StoreNotReadyError(
            f"the epochs of {', '.join(lookup.of.view.name for lookup in lookups)} changed "
            f"{_ATTEMPTS} times during one request; read again"
        )


class _View:
    """What is known of a view: its layout, and the state last seen in the store."""

    def __init__(self, project: str, view: CompiledView) -> None:
        self.view = view
        self.layout = RecordLayout(view)
        self.keys = ViewKeys(project, view.name)
        self.types = list(view.keys.values())
        # one tuple, replaced as a whole: several threads read it, and it is only a guess of
        # what the store holds by the time of the next read
        self._seen: tuple[bytes | None, ViewState] | None = None

    @property
    def guess(self) -> ViewState | None:
        """The state that was seen last; None if there is none to read by."""
        seen = self._seen
        if seen is None or seen[1].content is None:
            return None
        fits = seen[1].content.online_fingerprint == self.view.online_fingerprint
        return seen[1] if fits else None

    def see(self, raw: bytes | None) -> ViewState:
        """The state in these bytes, remembered."""
        seen = self._seen
        if seen is None or seen[0] != raw:
            seen = (raw, ViewState() if raw is None else ViewState.from_bytes(raw))
            self._seen = seen
        return seen[1]

    def readable(self, state: ViewState) -> tuple[str, Content]:
        """The epoch to read and what it holds; StoreNotReadyError if it cannot be read."""
        if state.epoch is None or state.content is None:
            raise StoreNotReadyError(
                f"feature view {self.view.name!r} is not in the online store yet; "
                f"run 'paimon-features materialize {self.view.name}' and wait until it is built"
            )
        if state.content.online_fingerprint != self.view.online_fingerprint:
            raise StoreNotReadyError(
                f"feature view {self.view.name!r} is in the online store for another definition "
                f"(generation {state.content.generation}); run 'paimon-features apply' and "
                f"'paimon-features materialize {self.view.name}', or read with the definition "
                "that was materialized"
            )
        return state.epoch, state.content


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a selection asks of each view."""

    selection: Selection
    views: Mapping[str, WindowFeatures]


@dataclass(frozen=True, slots=True)
class _Answer:
    """The features of one view, by name."""

    values: Mapping[str, pa.Array]
    statuses: Mapping[str, Codes]
    event_times: pa.Array
    freshness: Freshness


@dataclass
class _Lookup:
    """The part of one request that concerns one view."""

    of: _View
    entities: Mapping[str, object]
    count: int = field(init=False)
    _arrays: list[pa.Array] = field(init=False)
    _epoch: tuple[str, Content] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._arrays = key_arrays(self.of.view.keys, self.entities)
        self.count = len(self._arrays[0])
        self._bytes = entity_bytes(self.of.types, self._arrays)

    def key_columns(self) -> dict[str, pa.Array]:
        return dict(zip(self.of.view.keys, self._arrays, strict=True))

    def aim(self, state: ViewState) -> bool:
        """Read the epoch of ``state`` from now on; whether it is another one than before."""
        target = self.of.readable(state)
        if target == self._epoch:
            return False
        self._place(*target)
        self._epoch = target
        return True

    def keys(self) -> list[bytes]:
        """The state's key, the markers of the buckets in question, and the records' keys."""
        return [self.of.keys.state, *self._marker_keys, *self._record_keys]

    def _place(self, epoch: str, content: Content) -> None:
        columns = [Column.from_arrow(array).values for array in self._arrays]
        buckets = bucket_of(columns, self.of.types, content.buckets)
        numbers, self._bucket_of = np.unique(buckets, return_inverse=True)
        keys: list[BucketKeys] = [self.of.keys.bucket(epoch, int(b)) for b in numbers]
        self._marker_keys = [of_bucket.marker for of_bucket in keys]
        self._record_keys = [
            keys[b].record_stem + entity
            for b, entity in zip(self._bucket_of.tolist(), self._bytes, strict=True)
        ]

    def fill(self, found: Sequence[bytes | None]) -> None:
        """Take what the store answered."""
        split = 1 + len(self._marker_keys)
        self._markers: list[Marker] = []
        for key, raw in zip(self._marker_keys, found[1:split], strict=True):
            marker = None if raw is None else Marker.from_bytes(raw)
            if marker is None or not marker.complete:
                raise StoreNotReadyError(
                    f"feature view {self.of.view.name!r}: the online store has lost "
                    f"{key.decode()}; a running materializer builds the view anew"
                )
            self._markers.append(marker)
        records = found[split:]
        self._there = np.array([i for i, r in enumerate(records) if r is not None], np.int64)
        self._records = self.of.layout.decode([r for r in records if r is not None])

    def answer(self, features: WindowFeatures, q_ms: int, clock_ms: int) -> _Answer:
        view, records = self.of.view, self._records
        self._check_time(q_ms, clock_ms)
        newest = np.full(self.count, NEVER_MS, np.int64)
        end_ms = view.horizon(q_ms)
        newest[self._there] = newest_before(view, self.of.layout, records, end_ms)
        status = self._status(newest, q_ms, clock_ms)
        null = (status == Status.MISSING) | (status == Status.EXPIRED)
        # axes: rows of the request; one without a record has no cells
        offsets = np.zeros(self.count + 1, np.int64)
        offsets[1:][self._there] = np.diff(records.offsets)
        cells = WindowCells(self.of.layout, records.cells, np.cumsum(offsets))
        values: dict[str, pa.Array] = {}
        statuses: dict[str, Codes] = {}
        for name, (column, ill_conditioned) in features.values(cells, q_ms, null).items():
            values[name] = column
            statuses[name] = status
            if ill_conditioned is not None and ill_conditioned.any():
                statuses[name] = np.where(ill_conditioned, Status.ILL_CONDITIONED, status)
        times = pa.array(newest, mask=newest == NEVER_MS)
        return _Answer(values, statuses, times, self._freshness(clock_ms))

    def _check_time(self, q_ms: int, clock_ms: int) -> None:
        """Refuse a read of a time whose cells may be pruned already."""
        view = self.of.view
        highs = [marker.high_ms for marker in self._markers]
        # a record can be ahead of its bucket's marker, and pruned by that
        highs += self._records.headers["bucket_high"].tolist()
        high_ms = max(highs, default=NEVER_MS)
        if q_ms < high_ms - view.margin_ms:
            raise RequestError(
                f"feature view {view.name!r}: q_ms={q_ms} lies {high_ms - q_ms} ms before the "
                f"newest applied event ({high_ms}), and the online store answers up to "
                f"{view.margin_ms} ms before it; read it from the lake "
                "(get_historical_features)"
            )
        built_ms = min((marker.built_ms for marker in self._markers), default=clock_ms)
        if may_miss_records(view, q_ms, clock_ms, built_ms):
            raise RequestError(
                f"feature view {view.name!r}: q_ms={q_ms} lies {clock_ms - q_ms} ms before the "
                "clock, and idle entities may have left the online store since; read it from the "
                "lake (get_historical_features), or build the store anew "
                f"('paimon-features materialize {view.name} --rebuild')"
            )

    def _status(self, newest: Ints, q_ms: int, clock_ms: int) -> Codes:
        view = self.of.view
        status = np.full(self.count, Status.PRESENT, np.int8)
        if view.max_staleness_ms is not None:
            stale = [self._is_stale(marker, clock_ms) for marker in self._markers]
            status[np.array(stale, bool)[self._bucket_of]] = Status.STALE
        if view.ttl_ms is not None:
            status[newest < view.horizon(q_ms) - view.ttl_ms] = Status.EXPIRED
        status[(newest < view.known_from(q_ms)) | (newest == NEVER_MS)] = Status.MISSING
        return status

    def _is_stale(self, marker: Marker, clock_ms: int) -> bool:
        limit_ms = self.of.view.max_staleness_ms
        return limit_ms is not None and clock_ms - marker.current_ms > limit_ms

    def _freshness(self, clock_ms: int) -> Freshness:
        markers = self._markers
        high_ms = min((m.high_ms for m in markers), default=NEVER_MS)
        return Freshness(
            applied_snapshot=min((m.applied_snapshot for m in markers), default=0),
            commit_time_ms=min((m.commit_time_ms for m in markers), default=0),
            event_time_high_ms=None if high_ms == NEVER_MS else high_ms,
            current_ms=min((m.current_ms for m in markers), default=0),
            stale=any(self._is_stale(m, clock_ms) for m in markers),
        )


def _columns(
    selection: Selection, answers: Mapping[str, _Answer], inputs: Mapping[str, pa.Array], rows: int
) -> tuple[list[pa.Array], list[pa.Array]]:
    """The value and the status of each output, in their order."""
    values: list[pa.Array] = []
    told: list[Codes] = []
    computed: Mapping[CompiledInteraction, Computed] = {}
    if selection.interactions:
        known = {ref: answers[ref.view].values[ref.feature] for ref in selection.refs}
        codes = {ref: answers[ref.view].statuses[ref.feature] for ref in selection.refs}
        computed = selection.compute(known, inputs, rows)
    for output in selection.outputs:
        if isinstance(output, FeatureRef):
            answer = answers[output.view]
            values.append(answer.values[output.feature])
            told.append(answer.statuses[output.feature])
        else:
            own = computed[output]
            values.append(own.values)
            told.append(selection.worst(output, own, codes, Status.ILL_CONDITIONED, rows))
    # the features of a view share one array of codes, so that one array of names is enough
    arrays = {id(code): _status_array(code) for code in {id(c): c for c in told}.values()}
    return values, [arrays[id(code)] for code in told]


def _status_array(codes: Codes) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes), status_names())
