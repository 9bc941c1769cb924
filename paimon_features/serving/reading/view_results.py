"""From the rows of a read to the results: all queries of one selection and time at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import OnlineStoreError, RequestError
from paimon_features.core.native import CORE
from paimon_features.core.types.array_types import Bools, Ints
from paimon_features.core.types.schema import DataType
from paimon_features.core.types.statuses import Status
from paimon_features.definitions import CompiledFeature, CompiledView, FeatureRef, Selection
from paimon_features.definitions.aggregates.fold import NEVER_MS
from paimon_features.definitions.finishing import FeatureColumn, entity_statuses
from paimon_features.definitions.own_events import OwnEvents
from paimon_features.definitions.selection import Codes
from paimon_features.online.store.expiry import may_miss_records
from paimon_features.serving.reading.native_fold import Folded, NativeFold, split_features
from paimon_features.serving.reading.view_rows import RowRange
from paimon_features.serving.reading.view_states import ViewVariant
from paimon_features.serving.reading.window_features import (
    WindowCells,
    WindowFeatures,
    newest_before,
)
from paimon_features.serving.replies.response import ResultBatch, ViewProvenance


class ViewPlan:
    """The features of a selection for one view in one definition.

    Where the native core is built it computes what it can, and NumPy the rest.
    """

    def __init__(self, variant: ViewVariant, features: Sequence[CompiledFeature]) -> None:
        self.variant = variant
        self._features = tuple(features)
        self.types = {feature.name: feature.type for feature in features}
        native, rest = split_features(variant.view, features)
        self._native = (
            None if CORE is None or not native else NativeFold(CORE, variant.layout, native)
        )
        self._rest = WindowFeatures(variant.view, rest) if rest else None
        self._all = WindowFeatures(variant.view, features)

    @property
    def is_direct(self) -> bool:
        """Whether the native core computes all of it, as numbers of eight bytes."""
        if self._native is None or self._rest is not None or not self._native.finishes_all:
            return False
        kinds = {True: "float64", False: "int64"}
        return all(self.types[name].text == kinds[real] for name, _, real in self._native.in_order)

    @property
    def outputs(self) -> Sequence[tuple[str, int, bool]]:
        """Name, place among the words of ``Folded``, and whether it is a float, in the order of the
        request; only of a plan that is direct."""
        assert self._native is not None
        return self._native.in_order

    @property
    def newest_at(self) -> int:
        """The place of the newest event times among the words of ``Folded``."""
        assert self._native is not None
        return self._native.newest_at

    def fold_direct(
        self, found: Sequence[bytes | None], start: int, stop: int, as_of_ms: int
    ) -> Folded | None:
        """Fold the records ``found[start:stop]``; None unless the core has finished everything."""
        assert self._native is not None
        return self._native.fold_all(found, start, stop, as_of_ms)

    def fold(self, part: RowRange, as_of_ms: int, stale: set[int]) -> Folded | None:
        """Return what the core computes of these rows; None where NumPy has to do everything.

        ``stale`` are the buckets that are too far behind.
        """
        if self._native is None:
            return None
        codes = None
        if stale:
            codes = bytes(
                Status.STALE if bucket in stale else Status.PRESENT for bucket in part.bucket_of
            )
        return self._native.fold(part.found, part.start, part.stop, as_of_ms, codes)

    def compute(
        self,
        part: RowRange,
        folded: Folded | None,
        as_of_ms: int,
        stale: set[int],
        own_events: OwnEvents | None = None,
    ) -> ViewResult:
        """Compute the features of these rows from what ``fold`` returned.

        ``own_events`` are the events of the requests, one per row, in a view of their source.

        Raises
        ------
        OnlineStoreError
            If a record is corrupt.
        """
        if folded is None or self._native is None:
            return self._by_numpy(part, as_of_ms, stale, own_events)
        if self._rest is None and own_events is None:
            return self.of_folded(folded, as_of_ms)
        null = _no_value(folded.codes)
        values = self._native.values(folded, as_of_ms, null, own_events)
        if self._rest is not None:
            decoded = part.decoded
            cells = WindowCells(self.variant.layout, decoded.records.cells, decoded.offsets)
            values |= self._rest.values(cells, as_of_ms, null, own_events)
        result = self._ordered(values, folded)
        return self._with_own(result, folded.codes, part, stale, own_events)

    def _with_own(
        self,
        result: ViewResult,
        codes: Codes,
        part: RowRange,
        stale: set[int],
        own_events: OwnEvents | None,
    ) -> ViewResult:
        """Return the result with the statuses of features that count an event: no entity with an
        event is unknown or expired."""
        if own_events is None:
            return result
        counted = own_events.member & ((codes == Status.MISSING) | (codes == Status.EXPIRED))
        if not counted.any():
            return result
        present = [Status.STALE if bucket in stale else Status.PRESENT for bucket in part.bucket_of]
        statuses = dict(result.codes)
        for feature in self._features:
            if feature.aggregate.counts_own_event:
                plain = statuses[feature.name]
                is_ill = plain == Status.ILL_CONDITIONED
                statuses[feature.name] = np.where(counted & ~is_ill, present, plain).astype(np.int8)
        return ViewResult(result.values, statuses, result.newest, result.snapshots)

    def of_folded(self, folded: Folded, as_of_ms: int) -> ViewResult:
        """Return the features of what was folded, where the core computes something of each."""
        assert self._native is not None
        finished = self._native.finished(folded)
        if finished is not None:
            shared = dict.fromkeys(finished, folded.codes)
            return ViewResult(finished, shared, folded.newest, folded.snapshots)
        values = self._native.values(folded, as_of_ms, _no_value(folded.codes))
        return self._ordered(values, folded)

    def _ordered(self, found: Mapping[str, FeatureColumn], folded: Folded) -> ViewResult:
        """Return the features in the order of the request."""
        ordered = {name: found[name] for name in self.types}
        return ViewResult.of(ordered, folded.codes, folded.newest, folded.snapshots)

    def _by_numpy(
        self, part: RowRange, as_of_ms: int, stale: set[int], own_events: OwnEvents | None
    ) -> ViewResult:
        view, layout, decoded = self.variant.view, self.variant.layout, part.decoded
        records = decoded.records
        newest = decoded.spread(newest_before(view, layout, records, view.horizon(as_of_ms)))
        codes = _codes(view, part, newest, as_of_ms, stale)
        cells = WindowCells(layout, records.cells, decoded.offsets)
        values = self._all.values(cells, as_of_ms, _no_value(codes), own_events)
        snapshots = decoded.spread(records.headers["snapshot"])
        result = ViewResult.of(values, codes, newest, snapshots)
        return self._with_own(result, codes, part, stale, own_events)


def _no_value(codes: Codes) -> Bools | None:
    """Return where an entity is unknown or expired; None where none is."""
    return (codes == Status.MISSING) | (codes == Status.EXPIRED) if codes.any() else None


@dataclass(frozen=True, slots=True, eq=False)
class ViewResult:
    """Features of one view by name, and of each row the newest event time and the snapshot in its
    record (NEVER_MS: none)."""

    values: Mapping[str, Column]
    codes: Mapping[str, Codes]
    newest: Ints
    snapshots: Ints

    @classmethod
    def of(
        cls, found: Mapping[str, FeatureColumn], codes: Codes, newest: Ints, snapshots: Ints
    ) -> ViewResult:
        """Return a result of these features; ``codes`` are those of the entities."""
        values: dict[str, Column] = {}
        own_codes: dict[str, Codes] = {}
        for name, (column, ill) in found.items():
            values[name] = column
            own_codes[name] = codes
            if ill is not None and ill.any():
                own_codes[name] = np.where(ill, Status.ILL_CONDITIONED, codes).astype(np.int8)
        return cls(values, own_codes, newest, snapshots)


def check_time(
    view: CompiledView, part: RowRange, folded: Folded | None, as_of_ms: int, clock_ms: int
) -> None:
    """Check that no cell has been pruned that a read at this time needs.

    Raises
    ------
    RequestError
        For a time for which some may have been.
    OnlineStoreError
        If a read at the present time was one, too, or if a record is corrupt.
    """
    bucket_high_ms = part.decoded.bucket_high_ms if folded is None else folded.bucket_high_ms
    high_ms = part.high_ms(bucket_high_ms)
    if as_of_ms < high_ms - view.margin_ms:
        if clock_ms < high_ms - view.margin_ms:
            raise OnlineStoreError(
                f"feature view {view.name!r}: the newest applied event ({high_ms}) lies "
                f"{high_ms - clock_ms} ms after the clock of this host ({clock_ms}): the clock is "
                "slow, or a record or marker of the online store is damaged; check the clock, then "
                f"run 'paimon-features materialize {view.name} --rebuild'"
            )
        raise RequestError(
            f"feature view {view.name!r}: as_of_ms={as_of_ms} lies {high_ms - as_of_ms} ms before "
            "the "
            f"newest applied event ({high_ms}), and the online store results up to "
            f"{view.margin_ms} ms before it; read it from the lake "
            "(get_historical_features)"
        )
    built_ms = min((marker.built_ms for marker in part.markers.values()), default=clock_ms)
    if may_miss_records(view, as_of_ms, clock_ms, built_ms):
        raise RequestError(
            f"feature view {view.name!r}: as_of_ms={as_of_ms} lies {clock_ms - as_of_ms} ms before "
            "the "
            "clock, and idle entities may have left the online store since; read it from the "
            "lake (get_historical_features), or rebuild the store "
            f"('paimon-features materialize {view.name} --rebuild')"
        )


def _codes(
    view: CompiledView, part: RowRange, newest: Ints, as_of_ms: int, stale: set[int]
) -> Codes:
    codes = entity_statuses(view, as_of_ms, newest)
    if stale:
        is_stale = np.array([bucket in stale for bucket in part.bucket_of], np.bool_)
        codes[is_stale & (codes == Status.PRESENT)] = Status.STALE
    return codes


def result_batch(
    selection: Selection,
    plans: Mapping[str, ViewPlan],
    results: Mapping[str, ViewResult],
    inputs: Mapping[str, Column],
    epochs: Mapping[str, str],
    reads: Mapping[str, ViewProvenance],
    as_of_ms: int,
) -> ResultBatch:
    """Return the results of several views as one batch, with computed features."""
    newest = {view: result.newest for view, result in results.items()}
    key_types = {
        name: kind for plan in plans.values() for name, kind in plan.variant.view.keys.items()
    }
    if not selection.computed:
        # most selections: no feature is computed from others
        outputs = [(results[ref.view], plans[ref.view], ref.feature) for ref in selection.refs]
        return ResultBatch(
            selection,
            as_of_ms,
            key_types,
            [plan.types[name] for _, plan, name in outputs],
            [result.values[name] for result, _, name in outputs],
            [result.codes[name] for result, _, name in outputs],
            [result.newest for result, _, _ in outputs],
            newest,
            epochs,
            reads,
            inputs,
        )
    values = {ref: results[ref.view].values[ref.feature] for ref in selection.refs}
    codes = {ref: results[ref.view].codes[ref.feature] for ref in selection.refs}
    rows = len(next(iter(newest.values())))
    computed = selection.columns_of(values, inputs, rows)
    columns: list[Column] = []
    statuses: list[Codes] = []
    times: list[Ints] = []
    types: list[DataType] = []
    for output in selection.outputs:
        if isinstance(output, FeatureRef):
            columns.append(values[output])
            statuses.append(codes[output])
            times.append(newest[output.view])
            types.append(plans[output.view].types[output.feature])
        else:
            column, overflown = computed[output]
            columns.append(column)
            statuses.append(selection.worst(output, overflown, codes, rows))
            times.append(_newest_of([newest[ref.view] for ref in output.refs], rows))
            types.append(output.type)
    return ResultBatch(
        selection,
        as_of_ms,
        key_types,
        types,
        columns,
        statuses,
        times,
        newest,
        epochs,
        reads,
        inputs,
    )


def _newest_of(times: Sequence[Ints], rows: int) -> Ints:
    """Return the newest of several event times, row by row; NEVER_MS where there is none."""
    different = list({id(one): one for one in times}.values())
    if len(different) == 1:
        return different[0]
    return np.maximum.reduce(different) if different else np.full(rows, NEVER_MS, np.int64)
