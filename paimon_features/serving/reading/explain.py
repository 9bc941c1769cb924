"""Explain a value: the cells of an online read that it was computed from, as a document.

The explained bytes are those that the read itself used, so the explained value is the value that
was served.

::

    level 1   |=======|#######|#######|
    level 0                           |###|###|#~~    # counts, = does not
              start                             end
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import UnknownNameError
from paimon_features.core.types.array_types import Ints
from paimon_features.core.types.statuses import Status
from paimon_features.core.windows import Window, ceil_ms, floor_ms, format_duration
from paimon_features.definitions import (
    CompiledFeature,
    CompiledView,
    Definitions,
    FeatureRef,
    Selection,
)
from paimon_features.definitions.aggregates import EVENT_TIME_MAX, ROWS
from paimon_features.definitions.aggregates.fold import NEVER_MS, fold
from paimon_features.definitions.finishing import finish_window
from paimon_features.definitions.own_events import OwnEvents, RequestEvents
from paimon_features.online.store.codec import (
    INDEX_BIAS,
    LEVEL_SHIFT,
    LIFETIME_LEVEL,
    RecordLayout,
    Records,
)
from paimon_features.online.store.keys import ViewKeys
from paimon_features.online.store.markers import EpochContent, ViewState
from paimon_features.online.store.store import OnlineStore
from paimon_features.serving.reading.entities import (
    Buckets,
    EntityKeys,
    entity_keys,
    keys_of_events,
)
from paimon_features.serving.reading.fetcher import FeatureFetcher

Document = dict[str, Any]
"""What ``json.dumps`` takes."""


def explain(
    fetcher: FeatureFetcher,
    view: str,
    entity: Mapping[str, object],
    as_of_ms: int,
    features: Sequence[str] | None = None,
) -> Document:
    """Return one entity's features of a view at ``as_of_ms`` (UTC ms), and the cells they come
    from.

    ``entity`` maps each key column to one value. With ``features``, only these are explained, and
    only their partials are included. ``explain_event`` explains a read with an event.
    The document has, all times in UTC ms:

    - ``view``, ``entity``, ``as_of_ms``, ``levels_ms`` (sizes of the cells, the first is the tile),
      ``event_time_ms`` (the entity's newest event that the read sees, or null);
    - ``freshness``: as a reply has it;
    - ``record``: the header: ``applied_snapshot``, ``incarnation``, ``generation``, ``epoch``,
      ``bucket``, ``event_high_ms``, ``size_bytes``; null for an entity without a record;
    - ``cells``, in the order of the record: ``level`` (null for the lifetime cell), ``start_ms``
      (inclusive; null for the lifetime cell), ``end_ms`` (exclusive), ``events``, ``partials``;
    - ``own_event``: for a read with an event of the view's source, else null: ``state`` (as in the
      reply) and ``partials``, null unless it is counted;
    - ``features``: ``name``, ``aggregate``, ``type``, ``kind``, ``window``, ``calendar``,
      ``hop_ms``, ``offset_ms``, ``start_ms`` (inclusive; null for a lifetime), ``end_ms``
      (exclusive), ``cells`` (what the value is computed from: ``cell``, the index in the list
      above, and ``alone``, the value without all other cells), ``merged`` (the partials of
      these cells as one), ``events`` (in the cells), ``own_event`` (``alone``, the value of the
      event of the request without all cells; null where it is not counted), ``value``, ``status``
      and ``sentence``.

    Raises
    ------
    UnknownNameError
        For an unknown view or feature.
    RequestError, StoreNotReadyError, OnlineStoreError
        As ``FeatureFetcher.get`` does.
    """
    entities = {name: [value] for name, value in entity.items()}
    return _explain(fetcher, view, entities, as_of_ms, features)


def explain_event(
    fetcher: FeatureFetcher, view: str, event: RequestEvents, features: Sequence[str]
) -> Document:
    """Return the same for a read with one event (``service_event``), as of its time.

    Raises
    ------
    As ``explain``.
    """
    return _explain(fetcher, view, event.entities, int(event.times_ms[0]), features, event)


def service_event(
    definitions: Definitions,
    service: str,
    event: Mapping[str, object],
    view: str,
    features: Sequence[str] | None = None,
) -> tuple[RequestEvents, list[str]]:
    """Return an event as a service is read with it, and the features of a view to explain.

    They are ``features``, or all of this view that the service reads.

    Raises
    ------
    UnknownNameError
        For an unknown service, and for a view or feature that the service does not read.
    RequestError
        For a service without ``request=``, and for an event that does not fit.
    """
    of = definitions.service(service)
    reads = definitions.event_reads(of)
    refs = Selection.of(definitions.outputs(of.items())).refs
    of_view = [ref.feature for ref in refs if ref.view == view]
    owner = f"service {service!r}"
    if not of_view:
        views = dict.fromkeys(ref.view for ref in refs)
        raise UnknownNameError.of("feature view", view, views, owner)
    for name in features or ():
        if name not in of_view:
            raise UnknownNameError.of("feature", f"{view}:{name}", map(str, refs), owner)
    return reads.parse(event), list(features or of_view)


def _explain(
    fetcher: FeatureFetcher,
    view: str,
    entities: Mapping[str, object],
    as_of_ms: int,
    features: Sequence[str] | None,
    event: RequestEvents | None = None,
) -> Document:
    variants = fetcher.variants(view)
    keys = ViewKeys(fetcher.project, view, fetcher.store.key_prefix)
    recorder = _Recorder(fetcher.store)
    if features is None:
        [state] = recorder.get_many([keys.state])
        features = [f.name for f in _in_store(variants, state, ()).features]
    store = cast(OnlineStore, recorder)  # a read calls nothing else of it
    reader = FeatureFetcher(fetcher.project, variants, store, clock=fetcher.clock)
    refs = [FeatureRef(view, name) for name in features]
    if event is None:
        response = reader.get(refs, entities, as_of_ms)
    else:
        response = reader.get_event(refs, event)
    compiled = _in_store(variants, recorder.answers[keys.state], features)
    encode = entity_keys if event is None else keys_of_events
    entity = encode(compiled.keys, entities)
    record = _DecodedRecord.of(keys, compiled, features, entity, recorder.answers)
    own_event = None if event is None else event.of_view(compiled)
    [values], [statuses] = response.table.to_pylist(), response.statuses.to_pylist()
    return {
        "view": view,
        "entity": {name: plain(values[name]) for name in compiled.keys},
        "as_of_ms": as_of_ms,
        "levels_ms": list(compiled.levels_ms),
        "event_time_ms": response.event_times[view][0].as_py(),
        "freshness": asdict(response.freshness[view]),
        "record": record.header(),
        "cells": [cell.document() for cell in record.cells],
        "own_event": None if own_event is None else _event(record, own_event, as_of_ms),
        "features": [
            _feature(record, f, as_of_ms, values[f.name], statuses[f.name], own_event)
            for f in record.features
        ],
    }


def _event(record: _DecodedRecord, own_event: OwnEvents, as_of_ms: int) -> Document:
    [state], partials = own_event.states, None
    if own_event.member.all():
        columns = own_event.partials_at(np.array([as_of_ms]))
        partials = {name: plain(_values(columns[name])[0]) for name in record.partials}
    return {"state": state, "partials": partials}


def _in_store(
    variants: Sequence[CompiledView], raw: bytes | None, features: Sequence[str]
) -> CompiledView:
    """Return the definition of the store's records, chosen as the fetcher does."""
    content = None if raw is None else ViewState.from_bytes(raw).content
    fingerprint = None if content is None else content.online_fingerprint
    fitting = [
        view
        for view in variants
        if view.online_fingerprint == fingerprint
        and all(view.feature(name) is not None for name in features)
    ]
    return fitting[0] if fitting else variants[0]


class _Recorder:
    """A store that records the values it returned last, by key."""

    def __init__(self, store: OnlineStore) -> None:
        self._store = store
        self.key_prefix = store.key_prefix
        self.answers: dict[bytes, bytes | None] = {}

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        values = self._store.get_many(keys)
        self.answers.update(zip(keys, values, strict=True))
        return values


@dataclass(frozen=True, slots=True)
class _Cell:
    """One cell of a record; ``level`` and ``start_ms`` are None for the lifetime cell."""

    level: int | None
    start_ms: int | None
    end_ms: int
    events: int | None
    partials: Document

    def document(self) -> Document:
        return asdict(self)

    def is_in(self, levels_ms: Sequence[int], first: int, start_ms: int, end_ms: int) -> bool:
        """Return True if it belongs to a window of level ``first``.

        A window consists of the complete cells of its own level before its end, and then, for each
        finer level, of the cells after the last border of the next coarser one.
        """
        if self.level is None or self.start_ms is None or self.level > first:
            return False
        step = levels_ms[self.level]
        # on the finest level the complete open cell is included
        last = ceil_ms(end_ms, step) if self.level == 0 else floor_ms(end_ms, step)
        if self.level < first:
            start_ms = floor_ms(end_ms, levels_ms[self.level + 1])
        return start_ms <= self.start_ms < last


@dataclass(frozen=True)
class _DecodedRecord:
    """A decoded record."""

    view: CompiledView
    features: Sequence[CompiledFeature]
    layout: RecordLayout
    epoch: str
    content: EpochContent
    bucket: int
    size_bytes: int | None
    records: Records

    @classmethod
    def of(
        cls,
        keys: ViewKeys,
        view: CompiledView,
        features: Sequence[str],
        entity: EntityKeys,
        answers: Mapping[bytes, bytes | None],
    ) -> _DecodedRecord:
        layout = RecordLayout(view)
        raw = answers[keys.state]
        state = ViewState() if raw is None else ViewState.from_bytes(raw)
        assert state.epoch is not None
        assert state.content is not None  # or the read would not have been answered
        [bucket] = Buckets(list(view.keys.values()), state.content.buckets).of([entity])
        [entity_key] = entity.encoded
        record = answers[keys.bucket(state.epoch, bucket).record_stem + entity_key]
        size = None if record is None else len(record)
        records = layout.decode([] if record is None else [record])
        chosen = [f for name in features if (f := view.feature(name)) is not None]
        return cls(view, chosen, layout, state.epoch, state.content, bucket, size, records)

    def header(self) -> Document | None:
        if self.size_bytes is None:
            return None
        [header] = self.records.headers
        return {
            "applied_snapshot": int(header["snapshot"]),
            "incarnation": int(header["incarnation"]),
            "generation": self.content.generation,
            "epoch": self.epoch,
            "bucket": self.bucket,
            "event_high_ms": _time_or_none(int(header["event_high"])),
            "size_bytes": self.size_bytes,
        }

    @cached_property
    def cells(self) -> list[_Cell]:
        return list(self._cells())

    def columns(self, names: Sequence[str]) -> dict[str, Column]:
        """Return the partials of all cells, by name."""
        return self.layout.columns(self.records.cells, names)

    @cached_property
    def partials(self) -> list[str]:
        """The names of the partials that the features are computed from."""
        needed = {name for feature in self.features for name in feature.partials}
        needed |= {EVENT_TIME_MAX.name, ROWS.name}
        return [partial.name for partial in self.view.partials if partial.name in needed]

    def _cells(self) -> Iterator[_Cell]:
        names = self.partials
        values = {n: _values(c) for n, c in self.columns(names).items()}
        for i, key in enumerate(self.records.cells.rows["key"].tolist()):
            level = key >> LEVEL_SHIFT
            partials = {name: plain(values[name][i]) for name in names}
            events = values[ROWS.name][i]
            if level == LIFETIME_LEVEL:
                yield _Cell(None, None, self._lifetime_end(), events, partials)
            else:
                step = self.view.levels_ms[level]
                start_ms = ((key & ((1 << LEVEL_SHIFT) - 1)) - INDEX_BIAS) * step
                yield _Cell(level, start_ms, start_ms + step, events, partials)

    def _lifetime_end(self) -> int:
        """Return the end of the cells that pruning folded into the lifetime cell."""
        top = len(self.view.levels_ms) - 1
        high_ms = int(self.records.headers["bucket_high"][0])
        return floor_ms(self.view.keep_from(top, high_ms), self.view.levels_ms[top])


def _feature(
    record: _DecodedRecord,
    feature: CompiledFeature,
    as_of_ms: int,
    value: object,
    status: str,
    own_event: OwnEvents | None,
) -> Document:
    view, window = record.view, feature.window
    start_ms, end_ms = window.bounds(as_of_ms)
    used = [
        i
        for i, cell in enumerate(record.cells)
        if (cell.level is None and window.length is None)
        or cell.is_in(view.levels_ms, feature.level, start_ms, end_ms)
    ]
    names = [*feature.partials, EVENT_TIME_MAX.name, ROWS.name]
    chosen = {n: c.take(np.array(used, np.int64)) for n, c in record.columns(names).items()}
    alone = _folded(view, feature, chosen, np.arange(len(used) + 1), as_of_ms)
    whole = _folded(view, feature, chosen, np.array([0, len(used)]), as_of_ms)
    merged = {name: _values(column)[0] for name, column in whole.partials.items()}
    events = int(merged[ROWS.name] or 0)
    shares = [{"cell": i, "alone": plain(v)} for i, v in zip(used, alone.values, strict=True)]
    lifetime = window.length is None
    event = None
    if own_event is not None and feature.aggregate.counts_own_event and own_event.member.all():
        no_cells = {name: column.part(slice(0, 0)) for name, column in chosen.items()}
        of_event = _folded(view, feature, no_cells, np.array([0, 0]), as_of_ms, own_event)
        event = {"alone": plain(of_event.values[0])}
    used_cells = [record.cells[i] for i in used]
    return {
        "name": feature.name,
        "aggregate": feature.aggregate.kind,
        "type": feature.type.text,
        "kind": window.kind,
        "window": window.name,
        "calendar": not lifetime and not isinstance(window.length, int),
        "hop_ms": window.hop_ms,
        "offset_ms": window.offset_ms,
        "start_ms": None if lifetime else start_ms,
        "end_ms": end_ms,
        "cells": shares,
        "merged": {name: plain(merged[name]) for name in feature.partials},
        "events": events,
        "own_event": event,
        "value": plain(value),
        "status": status,
        "sentence": _sentence(view, feature, used_cells, events, value, status, event is not None),
    }


@dataclass(frozen=True, slots=True)
class _FoldResult:
    partials: Mapping[str, Column]
    values: list[Any]


def _folded(
    view: CompiledView,
    feature: CompiledFeature,
    cells: Mapping[str, Column],
    offsets: Ints,
    as_of_ms: int,
    own_event: OwnEvents | None = None,
) -> _FoldResult:
    """Return ranges of cells, each folded and finished by itself, or one with the event."""
    merged = fold([view.partial[name] for name in cells], cells, offsets, view.tile_ms)
    (finished,) = finish_window(view, [feature], merged, as_of_ms, own_event)
    return _FoldResult(merged, finished.column.to_pylist(feature.type))


# -- in words ------------------------------------------------------------------------------


def _sentence(
    view: CompiledView,
    feature: CompiledFeature,
    cells: Sequence[_Cell],
    events: int,
    value: object,
    status: str,
    with_event: bool,
) -> str:
    """Return the value and what it was computed from, in a sentence or two."""
    if status == Status.MISSING.name:
        return "No event of this entity lies within any window of the view, so it has no value."
    if status == Status.EXPIRED.name:
        assert view.ttl_ms is not None
        old = format_duration(view.ttl_ms)
        return f"The newest event of this entity is older than the view's ttl of {old}: no value."
    levels = dict.fromkeys(cell.level for cell in cells)
    parts = [_counted(sum(cell.level == level for cell in cells), view, level) for level in levels]
    origin = (
        f"from {_number(events, 'event')} in {' and '.join(parts)}" if cells else "from no cell"
    )
    if with_event:
        origin += " and from the event of the request"
    text = f"{feature.name} is {_shown(value)}, {origin}; {_window(feature.window)}."
    if status == Status.STALE.name:
        text += " The store is behind by more than the view's max_staleness."
    elif status == Status.ILL_CONDITIONED.name:
        text += " There is a value, but it cannot be computed from its sums."
    return text


def _counted(count: int, view: CompiledView, level: int | None) -> str:
    if level is None:
        return "the lifetime cell"
    return _number(count, "cell") + f" of {format_duration(view.levels_ms[level])}"


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _window(window: Window) -> str:
    hop = format_duration(window.hop_ms)
    if window.length is None:
        text = "the window has no beginning"
    elif not isinstance(window.length, int):
        text = f"the window began with the unit ({window.name}, {window.time_zone})"
    elif window.kind == "exact":
        text = f"the window is exactly {window.name} long"
    elif window.kind == "hop":
        text = f"the window of {window.name} moves on every {hop}"
    else:
        text = f"the window of {window.name} begins at a multiple of {hop}, rounded down"
    if window.offset_ms:
        text += f", and ends {format_duration(window.offset_ms)} before the time of the read"
    return text


def _shown(value: object) -> str:
    return f"{value:,.6g}" if isinstance(value, float) else "null" if value is None else str(value)


# -- as JSON -------------------------------------------------------------------------------


def _values(column: Column) -> list[Any]:
    pairs = zip(column.values.tolist(), column.mask.tolist(), strict=True)
    return [value if ok else None for value, ok in pairs]


def _time_or_none(time_ms: int) -> int | None:
    return None if time_ms == NEVER_MS else time_ms


def plain(value: Any) -> Any:
    """Return a value as in the JSON of a reply: dates and times in ISO 8601, bytes in base 64."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, list):
        if value and isinstance(value[0], tuple):  # a map
            return {key: plain(item) for key, item in value}
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dt.datetime):
        return value.isoformat(timespec="milliseconds" if value.microsecond else "seconds") + "Z"
    if isinstance(value, dt.date):
        return value.isoformat()
    return str(value) if isinstance(value, decimal.Decimal) else value
