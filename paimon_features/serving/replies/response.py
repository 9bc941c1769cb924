"""The response of an online read: values, a status for each of them, and their freshness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from paimon_features.core._arrow import pa
from paimon_features.core.columns.column import Column
from paimon_features.core.native import Buffer
from paimon_features.core.types.array_types import Ints
from paimon_features.core.types.schema import DataType
from paimon_features.core.types.statuses import STATUS_NAMES
from paimon_features.definitions import CompiledView, Selection
from paimon_features.definitions.aggregates.fold import NEVER_MS
from paimon_features.definitions.own_events import RequestEvents
from paimon_features.definitions.selection import Codes
from paimon_features.online.store.markers import EpochContent, Marker
from paimon_features.serving.replies.freshness import Freshness


@dataclass(frozen=True, slots=True, eq=False)
class ViewProvenance:
    """Where one view's values in a batch were read, so that they can be checked against the lake.

    ``epoch`` and ``content`` identify the records, and ``markers`` the snapshot applied to their
    buckets; ``bucket_of`` has the bucket of each row, and ``snapshots`` the newest snapshot in
    its record (NEVER_MS: no record). ``values`` and ``codes`` are those of all features that were
    read, including those that only an interaction uses. ``events`` are the events of the requests,
    one per row, in a view of their source.
    """

    view: CompiledView
    epoch: str
    content: EpochContent
    bucket_of: Sequence[int]
    markers: Mapping[int, Marker]
    snapshots: Ints
    values: Mapping[str, Column]
    codes: Mapping[str, Codes]
    events: RequestEvents | None = None


@dataclass(frozen=True, eq=False)
class ResultBatch:
    """Results of queries of one selection and time, as columns; each response is a range of rows.

    ``key_types`` are those of the entity keys; for each output of the selection there is its
    type, its column, its codes (``Status``), and the newest event times (NEVER_MS: unknown) of
    its inputs, all of one length. ``event_times`` are those by view, and ``epochs`` the
    names of the epochs of records that were read. ``reads`` has more about each view, and
    ``inputs`` has the request inputs; answers from a cache have neither.
    """

    selection: Selection
    as_of_ms: int
    key_types: Mapping[str, DataType]
    types: Sequence[DataType]
    columns: Sequence[Column]
    codes: Sequence[Codes]
    times: Sequence[Ints]
    event_times: Mapping[str, Ints]
    epochs: Mapping[str, str]
    reads: Mapping[str, ViewProvenance] = field(default_factory=dict)
    inputs: Mapping[str, Column] = field(default_factory=dict)

    @cached_property
    def rendered(self) -> dict[object, Any]:
        """Encoded columns that the responses of this batch share."""
        return {}


class ArrowParts(NamedTuple):
    """Buffers of keys, features, statuses and event times, none with a null, and the freshness.

    ``key_types`` and ``types`` are names; ``freshness`` is JSON.
    """

    buffers: Sequence[Buffer]
    freshness: bytes
    key_types: tuple[tuple[str, str], ...]
    types: tuple[str, ...]
    views: tuple[str, ...]


class OnlineResponse:
    """Features of some entities at ``as_of_ms``; rows are in the order of the request.

    ``keys`` has the values of each entity key, and ``freshness`` is per view. Arrow tables are
    made on first use, and need pyarrow (extra ``arrow``); lists and dictionaries do not.
    """

    __slots__ = ("__dict__", "batch", "freshness", "keys", "start", "stop")

    own_event: Mapping[str, str] | None = None
    """How the event of the request is handled, by view of its source: ``counted``, ``not a member``
    of the view, or ``skipped`` with the rule. None for a read by entity keys."""

    def __init__(
        self,
        batch: ResultBatch,
        start: int,
        stop: int,
        keys: Mapping[str, Sequence[Any]],
        freshness: Mapping[str, Freshness],
    ) -> None:
        self.batch = batch
        self.start, self.stop = start, stop
        self.keys = keys
        self.freshness = freshness

    def __len__(self) -> int:
        return self.stop - self.start

    def json(self, full_feature_names: bool) -> bytes | None:
        """Return the reply in JSON where it can be written without the columns (see
        ``direct_read``)."""
        return None

    def arrow_parts(self) -> ArrowParts | None:
        """Return the numbers of an Arrow reply, where they need no columns (see
        ``direct_read``)."""
        return None

    @property
    def selection(self) -> Selection:
        """The requested features."""
        return self.batch.selection

    @property
    def as_of_ms(self) -> int:
        """The time of the read (UTC ms; events at ``as_of_ms`` are excluded)."""
        return self.batch.as_of_ms

    @property
    def features(self) -> list[str]:
        """The names of the feature columns, in the order of the request."""
        return list(self.batch.selection.names)

    @cached_property
    def table(self) -> pa.Table:
        """The entity keys and then the features.

        A feature that two views have is called ``<view>__<feature>``.
        """
        batch, part = self.batch, slice(self.start, self.stop)
        keys = [pa.array(self.keys[name], kind.arrow) for name, kind in batch.key_types.items()]
        values = [
            column.part(part).to_arrow(kind.arrow)
            for column, kind in zip(batch.columns, batch.types, strict=True)
        ]
        return pa.table([*keys, *values], names=[*batch.key_types, *batch.selection.names])

    @cached_property
    def statuses(self) -> pa.Table:
        """The names of the features' statuses, under the features' names."""
        # the features of a view share one array of codes, so that one array of names is enough
        arrays = {
            id(codes): pa.DictionaryArray.from_arrays(
                pa.array(codes[self.start : self.stop]), pa.array(STATUS_NAMES)
            )
            for codes in {id(codes): codes for codes in self.batch.codes}.values()
        }
        return pa.table([arrays[id(codes)] for codes in self.batch.codes], names=self.features)

    @cached_property
    def event_times(self) -> Mapping[str, pa.Array]:
        """Per view the newest event time of each entity (UTC ms), null where none is known."""
        parts = {
            view: times[self.start : self.stop] for view, times in self.batch.event_times.items()
        }
        return {view: pa.array(part, mask=part == NEVER_MS) for view, part in parts.items()}

    def to_pydict(self) -> dict[str, list[Any]]:
        """Return the values as lists by column name, entity keys first."""
        batch, part = self.batch, slice(self.start, self.stop)
        keys = {name: list(self.keys[name]) for name in batch.key_types}
        outputs = zip(batch.selection.names, batch.columns, batch.types, strict=True)
        return keys | {name: column.part(part).to_pylist(kind) for name, column, kind in outputs}

    def to_pylist(self) -> list[dict[str, Any]]:
        """Return the values as one dictionary per entity."""
        return _rows(self.to_pydict())

    def status_rows(self) -> list[dict[str, str]]:
        """Return the names of the features' statuses as one dictionary per entity."""
        names = {
            id(codes): [STATUS_NAMES[code] for code in codes[self.start : self.stop].tolist()]
            for codes in self.batch.codes
        }
        codes = zip(self.features, self.batch.codes, strict=True)
        return _rows({feature: names[id(feature_codes)] for feature, feature_codes in codes})

    def event_time_lists(self) -> dict[str, list[int | None]]:
        """Return by view the newest event time of each entity (UTC ms), None where unknown."""
        return {
            view: [None if time == NEVER_MS else time for time in times[self.start : self.stop]]
            for view, times in (
                (view, times.tolist()) for view, times in self.batch.event_times.items()
            )
        }

    def _repr_html_(self) -> str:
        from paimon_features.core.notebook.markup import card, columns_table, table, utc

        fresh = [
            (name, utc(f.event_time_high_ms), utc(f.current_ms), "STALE" if f.stale else "",
             f.applied_snapshot)
            for name, f in self.freshness.items()
        ]  # fmt: skip
        worst = [
            ", ".join(sorted({*row.values()} - {"PRESENT"})) or "PRESENT"
            for row in self.status_rows()
        ]
        return card(
            f"{len(self):,} entities as of {utc(self.as_of_ms)} UTC",
            columns_table({**self.to_pydict(), "status": worst}),
            table(fresh, ("view", "newest event", "current at", "", "snapshot")),
        )

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the table, for pandas, Polars and whatever else reads Arrow streams."""
        return self.table.__arrow_c_stream__(requested_schema)


def _rows(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    names = list(columns)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]
