"""The laws of every aggregate: subclass the contract and name some aggregates.

::

    events -> one row of partials each -> tiles -> any grouping of tiles -> finish
                                                                              ||
    events ----------------------------------------------> the reference implementation
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from paimon_features.core.columns.column import Column
from paimon_features.core.types.array_types import Ints
from paimon_features.core.types.schema import Bool, Bytes, Float64, Int64, String, arrow_schema
from paimon_features.core.windows import DAY_MS
from paimon_features.definitions import Entity, EventSource, FeatureView
from paimon_features.definitions.aggregates import (
    EVENT_TIME_MAX,
    Aggregate,
    Finished,
    Merge,
    Reading,
)
from paimon_features.definitions.aggregates.fold import NEVER_MS, canonical, fold, newest_tile_end
from paimon_features.testing.generators import EVENT_TIME, VALUE_COLUMNS, random_events
from paimon_features.testing.reference.compare import differences
from paimon_features.testing.reference.features import Event, answer
from paimon_features.testing.reference.tiler import event_rows, tile_table
from paimon_features.testing.sizes import seeds

Columns = dict[str, Column]

_TYPES = {
    Merge.SUM: (Int64, Float64), Merge.MIN: (Int64, Float64, String),
    Merge.MAX: (Int64, Float64, String), Merge.DECAYED_SUM: (Float64,), Merge.TOP: (String,),
    Merge.BOTTOM: (String,), Merge.COUNTS: (String,), Merge.REGISTERS: (Bytes,),
}  # fmt: skip


def view_of(
    aggregate: Aggregate, tile: str = "1h", *, retraction: str | None = None
) -> FeatureView:
    """Return a view of this one aggregate over the generated columns, keyed by ``user``.

    ``retraction`` names one more column, which says whether an event retracts one. Views are
    cached, because every law uses the same ones.
    """
    key = (repr(aggregate), tile, retraction)
    if key not in _views:
        _views[key] = _view_of(aggregate, tile, retraction)
    return _views[key]


_views: dict[tuple[str, str, str | None], FeatureView] = {}


def _view_of(aggregate: Aggregate, tile: str, retraction: str | None) -> FeatureView:
    schema = {"user": Int64, EVENT_TIME: Int64, **VALUE_COLUMNS}
    if retraction is not None:
        schema[retraction] = Bool
    source = EventSource("lawful", schema=schema, event_time=EVENT_TIME, retraction=retraction)
    return FeatureView(
        "lawful",
        source=source,
        entity=Entity("user", keys={"user": Int64}),
        tile=tile,
        derive={"amount": "n * x", "twice": "small * 2"},
        features=[aggregate],
    )


class AggregateContract:
    """Laws of an aggregate. ``aggregates`` returns the ones to test, each over the lifetime.

    Tiles, merged in any grouping and any order, have to finish to the value that the reference
    implementation (``paimon_features.testing.reference.features``) computes from the raw events.
    """

    def aggregates(self) -> Sequence[Aggregate]:
        """Return the aggregates to test, without windows."""
        raise NotImplementedError

    def _cases(self) -> Iterator[tuple[Aggregate, random.Random, str]]:
        """Yield each aggregate with some generators, and the text that identifies the case."""
        for aggregate in self.aggregates():
            for seed in seeds(8):
                yield aggregate, random.Random(seed), f"{aggregate}, seed {seed}"

    def test_any_grouping_of_tiles_in_any_order_finishes_to_the_reference_value(self) -> None:
        for aggregate, rng, case in self._cases():
            view, events = self._events(rng, aggregate)
            tiles = _columns(view, events)
            as_of_ms = max(e[EVENT_TIME] for e in events) + rng.choice((1, DAY_MS))
            if not len(tiles[EVENT_TIME_MAX.name]):
                continue
            wanted = answer(view, events, as_of_ms)
            for _ in range(4):
                got = _value(view, _merge_randomly(rng, view, tiles), as_of_ms)
                assert not differences(view, events, as_of_ms, wanted, *got), (case, events)

    def test_merging_with_nothing_changes_nothing(self) -> None:
        for aggregate, rng, case in self._cases():
            view, events = self._events(rng, aggregate)
            tiles = _columns(view, events)
            rows = len(tiles[EVENT_TIME_MAX.name])
            # each tile between empty ranges: rows [0, 0), [0, 1), [1, 1), [1, 2) ...
            offsets = np.repeat(np.arange(rows + 1), 2)
            plain = canonical(view.compiled.partials, tiles)
            folded = fold(view.compiled.partials, tiles, offsets, view.compiled.tile_ms)
            for name, column in folded.items():
                alone, empty = column.take(np.arange(1, 2 * rows, 2)), column.mask[::2]
                assert not empty.any(), (case, name)
                assert _texts(alone) == _texts(plain[name]), (case, name)

    def test_events_and_their_retractions_cancel_in_any_grouping(self) -> None:
        for aggregate, rng, case in self._cases():
            view, events = self._events(rng, aggregate)
            if aggregate.why_not_retractable(view.compiled.scope) is not None:
                continue
            view = view_of(aggregate, view.tile, retraction="gone")
            retracted = rng.sample(events, rng.randint(0, len(events)))
            events = [{**event, "gone": False} for event in events]
            events += [{**event, "gone": True} for event in retracted]
            rng.shuffle(events)
            tiles = _columns(view, events)
            if not len(tiles[EVENT_TIME_MAX.name]):
                continue
            as_of_ms = max(e[EVENT_TIME] for e in events) + 1
            got = _value(view, _merge_randomly(rng, view, tiles), as_of_ms)
            wanted = answer(view, events, as_of_ms)
            assert not differences(view, events, as_of_ms, wanted, *got), (case, events)

    def test_names_types_and_limits_of_partials_are_consistent(self) -> None:
        for aggregate in self.aggregates():
            scope = view_of(aggregate).compiled.scope
            partials = aggregate.partials(scope)
            names = [partial.name for partial in partials]
            assert len(set(names)) == len(names)
            for partial in partials:
                assert partial.name.startswith("p_")
                assert partial.type in _TYPES[partial.merge]
                assert (partial.half_life_ms is not None) == (partial.merge is Merge.DECAYED_SUM)
                assert (partial.limit is not None) == (partial.merge in (Merge.TOP, Merge.BOTTOM))
            assert aggregate.partials(scope) == partials

    def test_events_with_only_nulls_have_the_reference_value(
        self,
    ) -> None:
        for aggregate in self.aggregates():
            view = view_of(aggregate)
            event: dict[str, Any] = {**dict.fromkeys(view.source.schema), "user": 0, EVENT_TIME: 5}
            got = _value(view, _columns(view, [event]), 10)
            assert not differences(view, [event], 10, answer(view, [event], 10), *got), aggregate

    def test_finishing_many_windows_at_once_equals_finishing_each(self) -> None:
        for aggregate, rng, case in self._cases():
            view, events = self._events(rng, aggregate)
            tiles = _columns(view, events)
            (feature,) = view.compiled.features
            ends = newest_tile_end(tiles, view.compiled.tile_ms)
            columns = [tiles[name] for name in feature.partials]

            def finish(
                length_ms: int | None,
                rows: Ints,
                columns: list[Column] = columns,
                ends: Ints = ends,
                view: FeatureView = view,
                aggregate: Aggregate = aggregate,
            ) -> list[str | None]:
                as_of_ms = ends[rows] + 1
                reading = Reading(as_of_ms, as_of_ms - ends[rows], length_ms)
                selected = [column.take(rows) for column in columns]
                return _texts(aggregate.finish(view.compiled.scope, selected, reading).column)

            rows = np.arange(len(ends))
            together = finish(DAY_MS if aggregate.by_length else None, rows)
            one_by_one = [finish(DAY_MS, rows[i : i + 1])[0] for i in rows]
            assert together == one_by_one, case

    def test_an_empty_window_has_one_value_whenever_it_is_read(self) -> None:
        for aggregate in self.aggregates():
            view = view_of(aggregate)
            (feature,) = view.compiled.features
            kinds = [view.compiled.partial[name].type for name in feature.partials]
            columns = [Column.nulls(3, kind) for kind in kinds]
            as_of_ms = np.array([-DAY_MS, 0, 700 * DAY_MS])
            reading = Reading(
                as_of_ms, as_of_ms - NEVER_MS, DAY_MS if aggregate.by_length else None
            )
            finished = aggregate.finish(view.compiled.scope, columns, reading)
            assert len(set(_texts(finished.column))) == 1, aggregate
            assert finished.ill_conditioned is None or not finished.ill_conditioned.any()

    def _events(self, rng: random.Random, aggregate: Aggregate) -> tuple[FeatureView, list[Event]]:
        view = view_of(aggregate, rng.choice(("5min", "1h", "1d")))
        events: list[Event] = []
        for event in event_rows(random_events(rng, view, rng.choice((1, 3, 30)))):
            events.append({**event, "user": 0})
        return view, events


def _columns(view: FeatureView, events: Iterable[Event]) -> Columns:
    """Return the tiles of one entity's events, by partial."""
    table = tile_table(view, events)
    return {p.name: Column.from_arrow(table.column(p.name)) for p in view.compiled.partials}


def _merge_randomly(rng: random.Random, view: FeatureView, tiles: Columns) -> Columns:
    """Fold rows in random order and in random groups, again and again, until one is left.

    A single tile is folded once, as by every reader, because the lake keeps lists unsorted.
    """
    rows = 0
    while rows != 1:
        rows = len(tiles[EVENT_TIME_MAX.name])
        order = np.array(rng.sample(range(rows), rows))
        cuts = sorted(rng.sample(range(1, rows), rng.randrange(rows)))
        if len(cuts) == rows - 1:
            cuts = cuts[1:]
        offsets = np.array([0, *cuts, rows])
        shuffled = {name: column.take(order) for name, column in tiles.items()}
        tiles = fold(view.compiled.partials, shuffled, offsets, view.compiled.tile_ms)
    # a single tile is still as the lake left it
    return canonical(view.compiled.partials, tiles)


def _value(
    view: FeatureView, merged: Columns, as_of_ms: int
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the finished feature of the one row, and its status."""
    (feature,) = view.compiled.features
    reading = Reading(
        as_of_ms, as_of_ms - newest_tile_end(merged, view.compiled.tile_ms), feature.window_ms
    )
    columns = [merged[name] for name in feature.partials]
    finished: Finished = feature.aggregate.finish(view.compiled.scope, columns, reading)
    kind = arrow_schema({feature.name: feature.type}).field(0).type
    (value,) = event_rows(pa.table({feature.name: finished.column.to_arrow(kind)}))
    ill = finished.ill_conditioned is not None and bool(finished.ill_conditioned[0])
    return dict(value), {feature.name: "ILL_CONDITIONED" if ill else "PRESENT"}


def _texts(column: Column) -> list[str | None]:
    """Return values that compare to the bit, null as None."""
    return [
        repr(value) if valid else None
        for value, valid in zip(column.values.tolist(), column.mask, strict=True)
    ]
