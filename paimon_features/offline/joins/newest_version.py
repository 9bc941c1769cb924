"""The newest version of a row as of a time: the point-in-time join of slowly changing tables.

::

    versions of one entity    a        b             c
    event time            ----|--------|-------------|------
    q                                     ^ sees b   ^ sees c (closed edge) or b (open edge)
    ttl                             [-----]   b is older: unknown
    created                                      b    a q before b became known sees a
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.columns.column import Column, take_rows
from paimon_features.core.types.array_types import Ints
from paimon_features.core.types.statuses import Status
from paimon_features.definitions.selection import Codes
from paimon_features.definitions.table_view import CompiledTable
from paimon_features.lake.specs import INGEST_TIME_MS
from paimon_features.offline.joins.entity_codes import EntityCodes, TimeKeys, positions, sort_order


class NewestVersionJoin:
    """Columns of the newest version for many rows ``(entity keys, as_of_ms)``.

    ``rows`` are the key columns, in the types of the entity. Call ``add_events`` for all relevant
    versions, in any order, then ``results``.
    """

    def __init__(
        self, view: CompiledTable, features: Sequence[str], rows: pa.Table, as_of_ms: Ints
    ) -> None:
        self.view, self.features = view, tuple(features)
        self.entities = EntityCodes(rows, view.keys)
        self._q = as_of_ms
        self._found: list[pa.Table] = []
        self._codes: list[Ints] = []
        self.held_events = 0

    @property
    def event_columns(self) -> list[str]:
        """Required columns of the table, including those that only break ties."""
        source = self.view.source
        names = [*self.view.keys, source.event_time, *self._ranks, *self._columns]
        return list(dict.fromkeys(names))

    def add_events(self, events: pa.Table) -> None:
        """Add the versions of requested entities; all others are ignored."""
        codes = self.entities.codes_of(events)
        time = Column.from_arrow(events.column(self.view.source.event_time))
        inside = codes >= 0 if time.valid is None else (codes >= 0) & time.valid
        if len(self._q):
            inside &= time.values <= self._q.max()
            if self.view.ttl_ms is not None:
                inside &= time.values >= self._q.min() - self.view.ttl_ms
        chosen = np.flatnonzero(inside)
        self.held_events += len(chosen)
        if len(chosen):
            self._found.append(take_rows(events.drop_columns(list(self.view.keys)), chosen))
            self._codes.append(codes[chosen])

    def results(self) -> tuple[pa.Table, Codes]:
        """Return the features of each row, and its status code."""
        status: Codes = np.full(len(self._q), Status.MISSING, np.int8)
        if not self._found:
            kinds = {f.name: f.type.arrow for f in self.view.features}
            nulls = {name: pa.nulls(len(self._q), kinds[name]) for name in self.features}
            return pa.table(nulls), status
        versions = pa.concat_tables(self._found).combine_chunks()
        codes = np.concatenate(self._codes)
        times = versions.column(self.view.source.event_time).to_numpy()
        present = np.flatnonzero(self.entities.codes >= 0)
        mine, as_of_ms = self.entities.codes[present], self._q[present]
        # search the first version after q (or at q where the edge is open); the one before it wins
        end_ms = as_of_ms + 1 if self.view.closed else as_of_ms
        time_keys = TimeKeys(times, self.entities.count, 1)
        order, keys = sort_order(time_keys.of(codes, times))
        order = self._ranked(versions, order, keys)
        place = positions(keys, time_keys.of(mine, end_ms)) - 1
        place = self._known_then(versions, order, codes, place, mine, as_of_ms)
        version = order[np.maximum(place, 0)]
        has_version = (place >= 0) & (codes[version] == mine)
        if self.view.ttl_ms is not None:
            has_version &= times[version] >= as_of_ms - self.view.ttl_ms
        present, version = present[has_version], version[has_version]
        status[present] = Status.PRESENT
        chosen = np.full(len(self._q), -1, np.int64)
        chosen[present] = version
        values = versions.select(self.features).take(pa.array(chosen, mask=chosen < 0))
        return values, status

    @property
    def _ranks(self) -> list[str]:
        """Columns that break ties between versions of one event time, before all others."""
        created = self.view.source.created_time
        return [INGEST_TIME_MS] if created is None else [created, INGEST_TIME_MS]

    @property
    def _columns(self) -> list[str]:
        """All columns of the view: ties must not depend on which features are requested."""
        return [f.name for f in self.view.features]

    def _known_then(
        self,
        versions: pa.Table,
        order: Ints,
        codes: Ints,
        place: Ints,
        mine: Ints,
        as_of_ms: Ints,
    ) -> Ints:
        """For each row the last place, at or before its own, of a version that was known at its
        time; that of another entity, or -1, where there is none."""
        created = self.view.source.created_time
        if created is None:
            return place
        column = Column.from_arrow(versions.column(created))
        known_ms = column.values[order]
        if column.valid is not None:  # known from its event time on
            known_ms = np.where(column.valid[order], known_ms, np.iinfo(np.int64).min)
        owners = codes[order]
        place = place.copy()
        rows = np.flatnonzero(place >= 0)
        while len(rows):
            at = place[rows]
            rows = rows[(owners[at] == mine[rows]) & (known_ms[at] > as_of_ms[rows])]
            place[rows] -= 1
            rows = rows[place[rows] >= 0]
        return place

    def _ranked(self, versions: pa.Table, order: Ints, keys: Ints) -> Ints:
        """Return the order with versions of one entity and event time by their ranks, the last
        counts."""
        last = np.append(keys[1:] != keys[:-1], True)
        if last.all():
            return order
        first = np.append(True, last[:-1])
        tied = np.flatnonzero(~(first & last))
        names = [
            name
            for name in dict.fromkeys([*self._ranks, *self._columns])
            if not pa.types.is_list(versions.schema.field(name).type)
        ]
        some = versions.select(names).take(pa.array(order[tied]))
        some = some.append_column("key", pa.array(keys[tied]))
        by = [("key", "ascending"), *((name, "ascending") for name in names)]
        best = pc.sort_indices(some, sort_keys=by, null_placement="at_start").to_numpy()
        order = order.copy()
        order[tied] = order[tied[best]]
        return order
