"""The local join in the subtasks of a Flink job: each joins the rows of some entities.

::

    rows ─ by entity ─▶ staging_x_rows ─┬─▶ part 0: local join ─▶ staging_x_features_0 ─┐
                        tiles, events ──┴─▶ part 1: local join ─▶ staging_x_features_1 ─┴─▶ features

The same code and the same values as in one process; a subtask reads the tiles of its buckets and of
the events those of its entities, from the lake.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyflink.datastream import MapFunction

from paimon_features.core.types.schema import DataType, Int32, Int64
from paimon_features.lake import Lake, append_stream, iter_batches, read_arrow
from paimon_features.lake.writing.staging import Staging
from paimon_features.offline.inputs.row_source import row_source
from paimon_features.offline.reading.entity_hash import EntityHash
from paimon_features.offline.reading.entity_rows import EntityRows
from paimon_features.offline.reading.view_join import join_view
from paimon_features.offline.reading.view_reads import FeatureViewRead

if TYPE_CHECKING:
    from pyflink.datastream import RuntimeContext

PART, CHUNK, ROW, TIME = "part", "chunk", "row", "event_time_ms"
_SWITCH_S = 1e-4
PART_MEMORY_MB = 512
"""Memory limit of the join of a part, in addition to its rows and their features."""


@dataclass(frozen=True)
class PartJoin:
    """What a subtask needs to join a part: the read, and the tables of rows and of features."""

    lake: Lake
    read: FeatureViewRead
    rows: str
    features: tuple[str, ...]

    @classmethod
    def create(cls, lake: Lake, staging: Staging, read: FeatureViewRead, parts: int) -> PartJoin:
        """Create the tables; chunks of rows are partitions of the features."""
        keys = {f"k{i}": kind for i, kind in enumerate(read.row_columns.values())}
        columns = {PART: Int32, CHUNK: Int32, ROW: Int64, TIME: Int64, **keys}
        rows = staging.create("rows", columns, (PART,), compression="lz4")
        columns = {CHUNK: Int32, ROW: Int64, **_feature_columns(read)}
        features = [
            staging.create(f"features_{part}", columns, (CHUNK,), compression="lz4")
            for part in range(parts)
        ]
        return cls(lake, read, rows, tuple(features))

    def stage(self, entity_rows: EntityRows) -> int:
        """Put the rows into their table by part, a chunk at a time; returns their number."""
        parts, buckets = len(self.features), self.read.buckets
        hashes = EntityHash(self.read.keys, buckets)
        # parts consist of whole buckets where there are enough
        cuts = -(-parts // buckets)

        def chunks() -> Iterator[pa.Table]:
            for chunk in range(entity_rows.chunks):
                keys, as_of_ms = entity_rows.keys(chunk, self.read)
                # rows with a null key have no hash: any part will do
                mine = np.maximum(hashes.partitions(hashes.of(keys), cuts), 0) % parts
                order = np.argsort(mine.astype(np.int16), kind="stable")
                columns: dict[str, Any] = {
                    PART: pa.array(mine[order].astype(np.int32)),
                    CHUNK: pa.array(np.full(len(order), chunk, np.int32)),
                    ROW: pa.array(order),
                    TIME: pa.array(as_of_ms[order]),
                }
                ordered_keys = keys.take(pa.array(order))
                columns.update(
                    {f"k{i}": ordered_keys.column(i) for i in range(ordered_keys.num_columns)}
                )
                yield pa.table(columns)

        if entity_rows.count:
            append_stream(self.lake, self.rows, chunks())
        return entity_rows.count

    def run(self, part: int) -> int:
        """Join the rows of a part, and write their features; returns the number of rows."""
        rows = read_arrow(self.lake, self.rows, partitions={PART: (part, part + 1)})
        if not rows.num_rows:
            return 0
        names = [f"k{i}" for i in range(len(self.read.row_columns))]
        columns = rows.select(names).rename_columns(list(self.read.row_columns))
        keys = self.read.untyped_rows(columns).append_column(TIME, rows.column(TIME))
        memory = PART_MEMORY_MB << 20
        with EntityRows(row_source(keys), [self.read], memory, None, _unchecked) as entity_rows:
            joined = join_view(
                self.lake, self.read, entity_rows, memory, None, tick=lambda rows: None
            )
            try:
                tables = self._outputs(rows, entity_rows, joined.chunk)
                append_stream(self.lake, self.features[part], tables)
            finally:
                joined.close()
        return rows.num_rows

    def results(self, chunk: int, count: int) -> pa.Table:
        """Return the features of the rows of a chunk, in their order.

        Columns as of ``ViewJoin.table``.
        """
        batches = [
            batch
            for table in self.features
            for batch in iter_batches(self.lake, table, partitions={CHUNK: (chunk, chunk + 1)})
        ]
        stored = pa.Table.from_batches(batches).combine_chunks()
        place = np.empty(count, np.int64)
        place[stored.column(ROW).to_numpy()] = np.arange(count)
        names = {column: name for name, column in _names(self.read).items()}
        result = stored.select(list(names)).take(pa.array(place))
        result = result.rename_columns([names[column] for column in result.column_names])
        for name in self.read.types:
            status = f"{name}__status"
            narrow = result.column(status).cast(pa.int8())
            result = result.set_column(result.column_names.index(status), status, narrow)
        return result

    def _outputs(
        self, rows: pa.Table, entity_rows: EntityRows, chunk: Callable[[int], pa.Table]
    ) -> Iterator[pa.Table]:
        kinds = _feature_columns(self.read)
        for number in range(entity_rows.chunks):
            features = chunk(number)
            start = entity_rows.starts[number]
            out = rows.select([CHUNK, ROW]).slice(start, features.num_rows)
            for name, column in _names(self.read).items():
                out = out.append_column(column, features.column(name).cast(kinds[column].arrow))
            yield out


class JoinParts(MapFunction):  # type: ignore[misc]
    """Flink's function: from the number of a part to the number of its rows."""

    def __init__(self, join: PartJoin) -> None:
        self._join = join

    def open(self, runtime_context: RuntimeContext) -> None:
        # threads of one interpreter: whoever waits for its lock after a call of Arrow or NumPy
        # would wait 5 ms, longer than most of these calls take
        sys.setswitchinterval(_SWITCH_S)

    def map(self, value: int) -> int:
        return self._join.run(value)


def _names(read: FeatureViewRead) -> Mapping[str, str]:
    """Return the columns of a table of features, by those of ``ViewJoin.table``."""
    values = {name: f"f{i}" for i, name in enumerate(read.types)}
    statuses = {f"{name}__status": f"s{i}" for i, name in enumerate(read.types)}
    return {**values, **statuses}


def _feature_columns(read: FeatureViewRead) -> dict[str, DataType]:
    values = {f"f{i}": kind for i, kind in enumerate(read.types.values())}
    return {**values, **{f"s{i}": Int32 for i in range(len(read.types))}}


def _unchecked(schema: pa.Schema) -> None:
    """Accept any schema: the rows were checked before they were staged."""
