"""Rows with their features: answered view by view, put out chunk by chunk, in their order."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import pyarrow as pa

from paimon_features.core.process.callbacks import OnProgress
from paimon_features.core.process.closeable import Closeable
from paimon_features.core.types.schema import DataType
from paimon_features.core.types.statuses import STATUS_NAMES
from paimon_features.definitions import FeatureRef, Output, Selection
from paimon_features.definitions.request import row_inputs
from paimon_features.lake import Lake
from paimon_features.offline.reading.engine import OfflineEngine, ViewFeatures
from paimon_features.offline.reading.entity_rows import EntityRows
from paimon_features.offline.reading.view_join import join_view
from paimon_features.offline.reading.view_reads import FeatureViewRead, ViewRead

STATUS_TYPE = pa.dictionary(pa.int8(), pa.string())


NOT_INCLUDED = "paimon-features.commits-not-included"
"""Metadata of a result's schema: JSON of the commits of events that a view's tiles lack."""


def commits_not_included(schema: pa.Schema) -> dict[str, int]:
    """Return how many commits of events are in no feature of a result, by view; empty if all are
    in.

    Their events were ingested after the tiles of the view were computed, so they are left out of
    all windows alike, until its job has read them.

    >>> commits_not_included(pa.schema([], {NOT_INCLUDED: '{"spend": 2}'}))
    {'spend': 2}
    """
    counts: dict[str, int] = json.loads((schema.metadata or {}).get(NOT_INCLUDED.encode(), b"{}"))
    return counts


class FeatureResult(Closeable):
    """The features of rows, computed; ``tables`` yields them, once.

    ``selection`` says which features and interactions, in order. Where all rows fit into memory
    with the tiles of a bucket, they are joined as they are; else they are cut into parts. With an
    ``engine`` feature views are joined there; table views never are.
    """

    def __init__(
        self,
        lake: Lake,
        entity_rows: EntityRows,
        reads: Sequence[ViewRead],
        selection: Selection,
        *,
        statuses: bool,
        memory_bytes: int,
        spill_folder: str | None,
        progress: OnProgress | None,
        engine: OfflineEngine | None = None,
        not_included: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.entity_rows, self.selection, self._statuses = entity_rows, selection, statuses
        self._progress, self._done, self._engine = progress, 0, engine
        self._parts: dict[str, ViewFeatures] = {}
        self._steps = entity_rows.count * (len(reads) + (entity_rows.chunks > 1))
        types: dict[Output, DataType] = {
            FeatureRef(read.name, name): kind for read in reads for name, kind in read.types.items()
        }
        types.update((computation, computation.type) for computation in selection.computed)
        names = selection.columns
        fields = [pa.field(name, types[output].arrow) for output, name in names.items()]
        if statuses:
            fields += [pa.field(f"{name}__status", STATUS_TYPE) for name in names.values()]
        metadata = {NOT_INCLUDED: json.dumps(not_included)} if not_included else None
        self.schema = pa.schema([*entity_rows.schema, *fields], metadata)
        try:
            for read in reads:
                self._compute(lake, read, memory_bytes, spill_folder)
        except BaseException:
            self.close()
            raise

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self.entity_rows.count

    def tables(self) -> Iterator[pa.Table]:
        """Yield the rows with their features, in order, some at a time.

        Nothing where there is none.
        """
        for chunk in range(self.entity_rows.chunks):
            features = {name: view.chunk(chunk) for name, view in self._parts.items()}
            table = self._assembled(self.entity_rows.rows(chunk), features)
            if self.entity_rows.chunks > 1:
                self._tick(table.num_rows)
            yield table

    def reader(self) -> pa.RecordBatchReader:
        """Return the same as a stream; spilled data is deleted at its end."""

        def batches() -> Iterator[pa.RecordBatch]:
            with self:
                for table in self.tables():
                    yield from table.to_batches()

        return pa.RecordBatchReader.from_batches(self.schema, batches())

    def table(self) -> pa.Table:
        """Return all of it at once."""
        with self:
            return pa.concat_tables([self.schema.empty_table(), *self.tables()])

    def close(self) -> None:
        """Delete the spilled data; harmless when repeated."""
        self.entity_rows.close()
        for parts in self._parts.values():
            parts.close()

    def _assembled(self, rows: pa.Table, features: Mapping[str, pa.Table]) -> pa.Table:
        """Return rows and their outputs side by side, columns in the order of the schema."""
        selection, count = self.selection, rows.num_rows
        values = {ref: features[ref.view].column(ref.feature) for ref in selection.refs}
        codes = {
            ref: features[ref.view].column(f"{ref.feature}__status").to_numpy()
            for ref in selection.refs
            if self._statuses
        }
        computed = selection.compute(values, row_inputs(selection.inputs, rows), count)
        columns, statuses = [*rows.columns], []
        for output in selection.columns:
            if isinstance(output, FeatureRef):
                columns.append(values[output])
                status = codes.get(output)
            else:
                result = computed[output]
                columns.append(result.values)
                if self._statuses:
                    status = selection.worst(output, result.overflown, codes, count)
            if self._statuses:
                statuses.append(
                    pa.DictionaryArray.from_arrays(pa.array(status), pa.array(STATUS_NAMES))
                )
        return pa.table([*columns, *statuses], schema=self.schema)

    def _tick(self, rows: int) -> None:
        self._done += rows
        if self._progress is not None:
            self._progress(self._done, self._steps)

    def _compute(
        self, lake: Lake, read: ViewRead, memory_bytes: int, spill_folder: str | None
    ) -> None:
        if not self.entity_rows.chunks:
            return
        rows = self.entity_rows
        if self._engine is not None and isinstance(read, FeatureViewRead):
            parts = self._engine.join(lake, read, rows, spill_folder, self._tick)
        else:
            parts = join_view(lake, read, rows, memory_bytes, spill_folder, self._tick)
        self._parts[read.name] = parts
