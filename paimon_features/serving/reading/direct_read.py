"""Reads of one view by the native core alone, from entities to the bytes of replies.

Most requests are of this kind: numbers of one view, by one key column, all finished by the core.
For them no columns, no provenance and no Arrow arrays are made, unless somebody reads the
response's ``batch``. Whatever is not usual in what was requested or found (a value of another type,
a switched epoch, a lost or damaged record, a view that is behind) is left to ``QueryGroup``, which
gets what was read; the responses are the same, to the byte.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any

import msgspec
import numpy as np

from paimon_features.core._arrow import is_arrow
from paimon_features.core.errors import OnlineStoreError
from paimon_features.core.native import CORE
from paimon_features.core.types.statuses import Status
from paimon_features.definitions import Selection
from paimon_features.online.store.expiry import READ_BEHIND_MS, expire_after_ms
from paimon_features.online.store.markers import Marker
from paimon_features.serving.reading.native_fold import Folded
from paimon_features.serving.reading.query import FeatureQuery
from paimon_features.serving.reading.query_groups import SelectionPlan
from paimon_features.serving.reading.view_results import ViewPlan, result_batch
from paimon_features.serving.reading.view_rows import freshness_of, is_stale
from paimon_features.serving.reading.view_states import Epoch, ServedView
from paimon_features.serving.replies.freshness import Freshness
from paimon_features.serving.replies.json_reply import (
    KEY_ENDING,
    all_present_json,
    freshness_json,
    names_json,
    no_times_json,
    statuses_json,
)
from paimon_features.serving.replies.response import (
    ArrowParts,
    OnlineResponse,
    ResultBatch,
    ViewProvenance,
)

_KINDS = {"int32": 0, "int64": 1, "string": 2}
"""Types of key columns that the core makes keys from."""
_MOST_BUCKETS = 4_096
_MOST_KNOWN = 1_024
_first = itemgetter(0)
_encode = msgspec.json.Encoder().encode


class BucketFreshness:
    """The freshness of some buckets, and what replies say of it."""

    __slots__ = ("by_view", "json", "markers")

    def __init__(self, view: str, markers: Sequence[Marker]) -> None:
        self.markers = markers
        self.by_view = {view: freshness_of(markers, False)}
        self.json = freshness_json(view, self.by_view[view])


class DirectRead:
    """A selection of one view, read from one epoch; to be kept. ``of`` says whether it can be."""

    def __init__(
        self, plan: SelectionPlan, served: ServedView, view_plan: ViewPlan, epoch: Epoch
    ) -> None:
        self.plan, self.served, self.view_plan, self.epoch = plan, served, view_plan, epoch
        view = view_plan.variant.view
        self.view = view
        [(self.key, kind)] = view.keys.items()
        self.kind = kind.text
        self._key_type = kind
        self._kind = _KINDS[kind.text]
        self._stems, self._markers = epoch.all_keys
        self._state = served.keys.state
        self.kept_ms = expire_after_ms(view)
        self.outputs = view_plan.outputs
        self.places = [place for _, place, _ in self.outputs]
        self.arrow_types = (
            ((self.key, kind.text),),
            tuple(view_plan.types[name].text for name, _, _ in self.outputs),
            (view.name,),
        )
        self.output_words = np.array(
            [place * 2 + is_float for _, place, is_float in self.outputs], np.int64
        ).tobytes()
        self.newest_at = view_plan.newest_at
        self._fresh: dict[tuple[int, ...], BucketFreshness] = {}
        """By the identities of the markers, which the values keep alive: a marker's own hash takes
        longer than all the rest."""
        self._of_names: dict[bool, bytes] = {}
        of_view = [len(self.outputs), *[0] * (len(Status) - 1)]
        self.one_present = {view.name: of_view}

    @classmethod
    def of(cls, plan: SelectionPlan, served: ServedView) -> DirectRead | None:
        """Return a direct read of the view's last known epoch, None where it needs more than the
        core."""
        last = served.last
        if CORE is None or last is None or last.epoch is None or last.fingerprint is None:
            return None
        selection = plan.selection
        if len(plan.views) != 1 or selection.computed or selection.inputs or plan.variants is None:
            return None
        [of] = plan.views.values()
        view_plan = of.plan_of(last.fingerprint)
        if view_plan is None or not view_plan.is_direct:
            return None
        view = view_plan.variant.view
        kinds = [kind.text for kind in view.keys.values()]
        if len(kinds) != 1 or kinds[0] not in _KINDS or last.epoch.buckets.count > _MOST_BUCKETS:
            return None
        return cls(plan, served, view_plan, last.epoch)

    @property
    def is_current(self) -> bool:
        """Whether its epoch is the last known one."""
        last = self.served.last
        return last is not None and last.epoch is self.epoch

    def place(self, queries: Sequence[FeatureQuery], as_of_ms: int) -> DirectBatch | None:
        """Return the keys that these queries need.

        None for a query that is not of the usual form.
        """
        first = queries[0]
        values = self._values(first)
        if values is None:
            return None
        ends = [len(values)]
        if len(queries) > 1:
            values = [*values]  # the first query keeps its own
            for query in queries[1:]:
                query_values = self._values(query)
                if (
                    query_values is None
                    or query.selection is not first.selection
                    or query.as_of_ms != first.as_of_ms
                ):
                    return None
                values += query_values
                ends.append(len(values))
        assert CORE is not None
        placed = CORE.place(values, self._kind, self._stems, self._markers, self._state)
        if placed is None:
            return None
        return DirectBatch(self, values, ends, as_of_ms, *placed)

    def _values(self, query: FeatureQuery) -> list[Any] | None:
        """Return the values of the key column, not empty; None for what the core does not take."""
        if query.inputs or query.events is not None:
            return None
        values: Any = query.entities.get(self.key)
        if type(values) is not list:
            if (
                self.kind != "int64"
                or not is_arrow(values)
                or values.type != self._key_type.arrow
                or values.null_count
            ):
                return None
            values = values.to_numpy().tolist()
        return values or None

    def freshness(self, markers: Sequence[Marker]) -> BucketFreshness:
        """Return the freshness of buckets with these markers."""
        key = tuple(map(id, markers))
        fresh = self._fresh.get(key)
        if fresh is None:
            if len(self._fresh) >= _MOST_KNOWN:
                self._fresh = {}  # a new one: another thread may be reading the old
            fresh = self._fresh[key] = BucketFreshness(self.view.name, markers)
        return fresh

    def names(self, full: bool) -> bytes:
        """Return the JSON of the names in a reply."""
        encoded = self._of_names.get(full)
        if encoded is None:
            encoded = self._of_names[full] = names_json(self.plan.selection, (self.key,), full)
        return encoded


class DirectBatch:
    """Queries that are read together, the ``keys`` to read, and what became of their values."""

    def __init__(
        self,
        read: DirectRead,
        values: list[Any],
        ends: list[int],
        as_of_ms: int,
        keys: list[bytes],
        buckets: list[int],
        bucket_of: bytes,
    ) -> None:
        self.read, self._values, self._ends, self.as_of_ms = read, values, ends, as_of_ms
        self.keys, self._buckets, self._bucket_of = keys, buckets, bucket_of
        self.rows = ends[-1]
        self.records = self.cells = 0
        self._markers: list[Marker] = []
        self._folded: Folded
        self._codes = b""
        """The status of each row."""
        self._counted = False

    def responses(
        self, found: Sequence[bytes | None], clock_ms: int
    ) -> list[OnlineResponse] | None:
        """Return the response to each query; None where anything found is not as usual."""
        read = self.read
        served, epoch, view = read.served, read.epoch, read.view
        last = served.last
        if last is None or last.epoch is not epoch or found[0] != last.raw:
            return None
        limit_ms = view.max_staleness_ms
        high_ms = None
        markers = self._markers
        for number, bucket in enumerate(self._buckets, 1):
            raw = found[number]
            if raw is None:
                return None
            try:
                marker = epoch.marker(bucket, raw)
            except OnlineStoreError:
                return None
            if not marker.complete or (
                limit_ms is not None and is_stale(view, marker.current_ms, clock_ms)
            ):
                return None
            markers.append(marker)
            if high_ms is None or marker.high_ms > high_ms:
                high_ms = marker.high_ms
        assert high_ms is not None
        as_of_ms = self.as_of_ms
        if as_of_ms < clock_ms - READ_BEHIND_MS and read.kept_ms is not None:
            return None  # records may have expired: checked in the usual way
        start = 1 + len(markers)
        folded = read.view_plan.fold_direct(found, start, start + self.rows, as_of_ms)
        if folded is None or as_of_ms < max(high_ms, folded.bucket_high_ms) - view.margin_ms:
            return None
        self._folded, self._codes = folded, folded.code_bytes
        self.records, self.cells = folded.records, folded.cells
        key, ends = read.key, self._ends
        if len(ends) == 1:
            if len(markers) > 1:
                of = sorted(zip(self._buckets, markers, strict=True), key=_first)
                fresh = read.freshness([marker for _, marker in of])
            else:
                fresh = read.freshness(markers)
            return [DirectResponse(self, 0, self.rows, {key: self._values}, fresh)]
        of_bucket = dict(zip(self._buckets, markers, strict=True))
        bucket_of = memoryview(self._bucket_of).cast("i")
        out: list[OnlineResponse] = []
        begin = 0
        for end in ends:
            if end - begin == 1:
                query_markers = [of_bucket[bucket_of[begin]]]
            else:
                query_markers = [of_bucket[b] for b in sorted(set(bucket_of[begin:end].tolist()))]
            fresh = read.freshness(query_markers)
            out.append(DirectResponse(self, begin, end, {key: self._values[begin:end]}, fresh))
            begin = end
        return out

    @cached_property
    def result(self) -> ResultBatch:
        """The values as columns, with their provenance, as other reads have them."""
        read, folded = self.read, self._folded
        plan, epoch = read.view_plan, read.epoch
        name = read.view.name
        result = plan.of_folded(folded, self.as_of_ms)
        provenance = ViewProvenance(
            read.view,
            epoch.name,
            epoch.content,
            memoryview(self._bucket_of).cast("i").tolist(),
            dict(zip(self._buckets, self._markers, strict=True)),
            result.snapshots,
            result.values,
            result.codes,
        )
        return result_batch(
            read.plan.selection,
            {name: plan},
            {name: result},
            {},
            {name: epoch.name},
            {name: provenance},
            self.as_of_ms,
        )

    def statuses_once(self) -> dict[str, list[int]] | None:
        """Return the number of values of each status, by view, at the first call; then None."""
        if self._counted:
            return None
        self._counted = True
        codes = self._codes
        present = codes.count(0)
        if present == len(codes) == 1:
            return self.read.one_present
        outputs = len(self.read.outputs)
        return {self.read.view.name: [n * outputs for n in map(codes.count, range(len(Status)))]}

    def json(
        self, start: int, stop: int, keys: Sequence[Any], fresh: bytes, full: bool
    ) -> bytes | None:
        """Return the reply of rows, as ``feast_json`` writes it; None where the core cannot."""
        read, folded, count = self.read, self._folded, stop - start
        assert CORE is not None
        if count == 1:
            ending = KEY_ENDING
        else:
            ending = b',"statuses":%b,"event_timestamps":%b' % (
                all_present_json(count), no_times_json(count),
            )  # fmt: skip
        opening = (
            b'{"metadata":{"feature_names":%b,"as_of_ms":%d,"freshness":{%b}},"results":'
            b'[{"values":%b%b' % (read.names(full), self.as_of_ms, fresh, _encode(keys), ending)
        )
        codes = self._codes[start:stop]
        if codes.count(0) == count:
            statuses, more = all_present_json(count), b""
        else:
            statuses, more = statuses_json(np.frombuffer(codes, np.int8))
        return CORE.reply_folded(
            opening, folded.words, folded.flat_bytes, read.output_words, read.newest_at, self.rows,
            start, stop, statuses, more,
        )  # fmt: skip

    def arrow_parts(
        self, start: int, stop: int, keys: Sequence[Any], fresh: bytes
    ) -> ArrowParts | None:
        """Return the buffers of an Arrow reply; None where one has a null, or keys are no int64."""
        read, folded, rows = self.read, self._folded, self.rows
        if read.kind != "int64" or folded.flags.strip(b"\0"):
            return None
        words = folded.words.data.cast("B")
        begin, size = 8 * start, 8 * (stop - start)
        places = [8 * rows * place + begin for place in (*read.places, read.newest_at)]
        *values, newest = [words[at : at + size] for at in places]
        statuses = self._codes[start:stop] + bytes(start - stop & 7)
        buffers = (array("q", keys), *values, *[statuses] * len(values), newest)
        return ArrowParts(buffers, fresh, *read.arrow_types)


class DirectResponse(OnlineResponse):
    """A response whose columns are made when they are read."""

    __slots__ = ("direct", "fresh")

    def __init__(
        self,
        direct: DirectBatch,
        start: int,
        stop: int,
        keys: Mapping[str, Sequence[Any]],
        fresh: BucketFreshness,
    ) -> None:
        self.direct, self.fresh = direct, fresh
        self.start, self.stop = start, stop
        self.keys = keys
        self.freshness: Mapping[str, Freshness] = fresh.by_view

    @property
    def batch(self) -> ResultBatch:  # type: ignore[override]
        return self.direct.result

    @property
    def selection(self) -> Selection:
        return self.direct.read.plan.selection

    @property
    def as_of_ms(self) -> int:
        return self.direct.as_of_ms

    def json(self, full_feature_names: bool) -> bytes | None:
        [keys] = self.keys.values()
        return self.direct.json(self.start, self.stop, keys, self.fresh.json, full_feature_names)

    def arrow_parts(self) -> ArrowParts | None:
        [keys] = self.keys.values()
        return self.direct.arrow_parts(self.start, self.stop, keys, self.fresh.json)

    def statuses_once(self) -> dict[str, list[int]] | None:
        """Return the number of values of each status of the whole read, at the first call.

        Then None.
        """
        return self.direct.statuses_once()
