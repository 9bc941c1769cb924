"""The offline store: features as they were at past times, from pinned snapshots of the lake."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypedDict, TypeVar, Unpack

import pyarrow as pa

from paimon_features.core.errors import RequestError, UnknownNameError
from paimon_features.core.process.callbacks import OnProgress
from paimon_features.definitions import (
    CompiledFeature,
    CompiledTable,
    CompiledView,
    Output,
    Selection,
    TableFeature,
)
from paimon_features.definitions.aggregates import EVENT_TIME_MAX
from paimon_features.definitions.own_events import EventReads
from paimon_features.definitions.request import row_inputs
from paimon_features.lake import Lake
from paimon_features.lake.side_folder.generations import GenerationRecord
from paimon_features.offline.feature_file import WrittenFile, check_output, write_result
from paimon_features.offline.feature_result import FeatureResult
from paimon_features.offline.inputs.row_source import row_source
from paimon_features.offline.reading.engine import OfflineEngine
from paimon_features.offline.reading.entity_rows import EntityRows
from paimon_features.offline.reading.pinning import AsOf, Pin, Pinner, check_contents
from paimon_features.offline.reading.spill import memory_bytes
from paimon_features.offline.reading.view_reads import FeatureViewRead, TableViewRead, ViewRead
from paimon_features.tiles.rollups import Rollups

__all__ = ["AsOf", "OfflineStore", "Pin", "PinnedRead"]

Feature = TypeVar("Feature", CompiledFeature, TableFeature)


class JoinKeywords(TypedDict, total=False):
    """Keywords of reads of historical features; see ``OfflineStore.get_historical_features``."""

    statuses: bool
    progress: OnProgress | None
    memory_mb: float | None
    spill_folder: str | None


class HistoryKeywords(JoinKeywords, total=False):
    """The same, and what joins the rows."""

    engine: OfflineEngine | None


class PinnedRead:
    """A point-in-time read whose snapshots are chosen; reading it twice returns the same."""

    def __init__(
        self,
        lake: Lake,
        selection: Selection,
        reads: Sequence[ViewRead],
        as_of: int | None,
        not_included: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.lake, self.selection, self.reads, self.as_of = lake, selection, tuple(reads), as_of
        self.not_included = {name: count for name, count in not_included.items() if count}
        """Commits of events that the tiles of a view do not contain yet, where there are any."""

    @property
    def columns(self) -> Mapping[Output, str]:
        """What the column of each output is called, in their order."""
        return self.selection.columns

    @property
    def pins(self) -> tuple[Pin, ...]:
        """Every table that is read, each once, with its snapshot."""
        return tuple(dict.fromkeys(pin for read in self.reads for pin in read.pins))

    def reads_of(self, events: EventReads | None) -> tuple[ViewRead, ...]:
        """Return the reads of entity rows, which may be events of a request's source."""
        return self.reads if events is None else tuple(r.of_events(events) for r in self.reads)

    def definitions(self, events: EventReads | None) -> dict[str, object]:
        """Return what each feature's values are computed from, in addition to the tables."""
        reads = {read.name: read for read in self.reads_of(events)}
        return {str(ref): reads[ref.view].definition(ref.feature) for ref in self.selection.refs}

    def read(self, rows: Any, **options: Unpack[HistoryKeywords]) -> pa.Table:
        """Return the rows with their features; see ``OfflineStore.get_historical_features``."""
        return self.join(self.check_rows(rows, **_of_checking(options)), **options).table()

    def stream(self, rows: Any, **options: Unpack[HistoryKeywords]) -> pa.RecordBatchReader:
        """Return the same as a stream; see ``OfflineStore.stream_historical_features``."""
        return self.join(self.check_rows(rows, **_of_checking(options)), **options).reader()

    def check_rows(
        self,
        rows: Any,
        *,
        memory_mb: float | None = None,
        spill_folder: str | None = None,
        hashed: bool = False,
    ) -> EntityRows:
        """Take all rows in and check them; with ``hashed`` also compute their content's hash."""
        source = row_source(rows, self.lake)
        memory = memory_bytes(memory_mb)
        reads = self.reads_of(source.event_reads)
        return EntityRows(source, reads, memory, spill_folder, self._check, hashed)

    def join(
        self,
        entity_rows: EntityRows,
        *,
        statuses: bool = False,
        progress: OnProgress | None = None,
        memory_mb: float | None = None,
        spill_folder: str | None = None,
        engine: OfflineEngine | None = None,
    ) -> FeatureResult:
        """Compute the features of rows that were taken in."""
        if statuses:
            check_free(entity_rows.schema, [f"{c}__status" for c in self.columns.values()])
        result = FeatureResult(
            self.lake,
            entity_rows,
            entity_rows.reads,
            self.selection,
            statuses=statuses,
            memory_bytes=memory_bytes(memory_mb),
            spill_folder=spill_folder,
            progress=progress,
            engine=engine,
            not_included=self.not_included,
        )
        try:
            for pin in self.pins:  # files are found by the snapshot's number
                pin.check(self.lake)
        except BaseException:
            result.close()
            raise
        return result

    def _check(self, rows: pa.Schema) -> None:
        check_free(rows, list(self.columns.values()))
        row_inputs(self.selection.inputs, rows.empty_table())


def check_free(rows: pa.Schema, names: Sequence[str]) -> None:
    """Raise RequestError if entity rows have a column with the name of a result's column."""
    conflicts = [name for name in names if name in rows.names]
    if conflicts:
        raise RequestError(
            f"entity rows have a column {conflicts[0]!r}, which is also the name of a feature "
            "or its status; rename the column"
        )


def _of_checking(options: HistoryKeywords) -> dict[str, Any]:
    """Return the options of ``check_rows``; TypeError for unknown ones, before rows are read."""
    for name in options.keys() - HistoryKeywords.__annotations__.keys():
        raise TypeError(f"historical features: unexpected keyword argument {name!r}")
    return {name: value for name, value in options.items() if name in ("memory_mb", "spill_folder")}


class OfflineStore:
    """Reads features at past times from the lake, without Java.

    ``view`` finds a compiled view by name, ``generation`` the generation that is read of it;
    both raise where there is none.
    """

    def __init__(
        self,
        lake: Lake,
        view: Callable[[str], CompiledView | CompiledTable],
        generation: Callable[[CompiledView], GenerationRecord],
    ) -> None:
        self.lake = lake
        self._view = view
        self._generation = generation

    def get_historical_features(
        self,
        refs: Sequence[Output],
        rows: Any,
        *,
        as_of: AsOf = None,
        **options: Unpack[HistoryKeywords],
    ) -> pa.Table:
        """Return the features of each row ``(entity keys, event_time_ms)`` as of its own time.

        A feature at ``q`` is computed from the events with ``window start <= ts < q``: an event at
        exactly ``q`` is not seen. Snapshots of all tables are chosen once, at the start.

        Parameters
        ----------
        refs
            The features and interactions, in the order of the result's columns.
        rows
            Anything that ``row_source`` takes: an Arrow table or reader, a DataFrame, the path
            of Parquet files, a table of the lake. It has the keys of every view, and
            ``event_time_ms`` (int64 UTC milliseconds or a timestamp). Duplicates are fine; a
            row with a null key gets nulls.
        as_of
            UTC milliseconds: only what had been committed to the lake by then (inclusive) is
            seen, so that late data and backfills do not leak; tiles are those of the generation
            that was active then. Or exactly which snapshot of each table is read, ``{table:
            snapshot id}`` or ``{table: "id@commit"}``; or the ``pins`` of an earlier read. The
            newest commits by default.
        statuses
            Also give a column ``<feature>__status`` each: PRESENT, EXPIRED, MISSING, or
            ILL_CONDITIONED.
        progress
            Called with the number of steps so far and in total, see ``OnProgress``.
        memory_mb
            Approximate memory limit in MiB, in addition to the rows and the result; 1024 by
            default. Larger data is spilled to disk, in ``spill_folder`` (by default the system's
            folder for temporary files); the values are bit-identical.
        engine
            What joins feature views in place of this process; table views are joined here.

        Returns
        -------
        The columns of ``rows`` as they are, in their order, then one column per feature, called
        like it, or ``<view>__<feature>`` where two views have a feature of that name. Events that
        the job of a view has not read yet are in none of its features; the number of commits of
        such events is in the schema's metadata, see ``commits_not_included``.

        Raises
        ------
        RequestError
            If the rows lack a column, or have one of a wrong type.
        UnknownNameError, GenerationError
            For a feature that is not defined, a view that is not applied.
        UnfilledError
            For a view whose tiles were never computed, or not by ``as_of``.
        SnapshotExpiredError
            If what had been committed by ``as_of`` can no longer be read: it has expired, or was
            removed by a rollback, a rebuild or a drop; or if a snapshot number is ambiguous,
            because the table has used it before.
        """
        return self.pin(refs, as_of=as_of).read(rows, **options)

    def stream_historical_features(
        self,
        refs: Sequence[Output],
        rows: Any,
        *,
        as_of: AsOf = None,
        **options: Unpack[HistoryKeywords],
    ) -> pa.RecordBatchReader:
        """Return the rows of ``get_historical_features``, and its errors, as a stream of batches.

        Neither rows nor answers have to fit into memory. All answers are computed before this
        returns; they are put out as the stream is read.
        """
        return self.pin(refs, as_of=as_of).stream(rows, **options)

    def write_historical_features(
        self,
        refs: Sequence[Output],
        rows: Any,
        path: Path,
        *,
        as_of: AsOf = None,
        **options: Unpack[HistoryKeywords],
    ) -> WrittenFile:
        """Return the rows of ``get_historical_features``, and its errors, as one file.

        Its suffix is the format: .parquet, .csv, .csv.gz, .arrow or .feather.
        Neither rows nor answers have to fit into memory. The file appears under its name when
        it is complete, in the place of another one; the same call writes the same bytes.
        """
        check_output(path)
        pinned = self.pin(refs, as_of=as_of)
        entity_rows = pinned.check_rows(rows, **_of_checking(options))
        count = write_result(pinned.join(entity_rows, **options), path)
        return WrittenFile(
            path, count, tuple(pinned.columns.values()), pinned.pins, pinned.not_included
        )

    def pin(
        self, refs: Sequence[Output], *, as_of: AsOf = None, repeatable: bool = False
    ) -> PinnedRead:
        """Choose the snapshots of a read: the newest, those of a time, or those that are named.

        Where ``as_of`` is given, or ``repeatable``, a later read of the same snapshots returns the
        same bits. Rollups come and go, and a sum of floats shows in which order it was added:
        then they are used only for what is merged exactly.

        Raises
        ------
        RequestError
            For no feature at all, or one that is named twice; for snapshots of other tables
            than those that are read.
        SnapshotExpiredError
            If a snapshot is no longer there.
        """
        selection = Selection.of(refs)
        pinner = Pinner(self.lake, as_of)
        views = [self._view(name) for name in dict.fromkeys(ref.view for ref in selection.refs)]
        names_of = {v.name: [r.feature for r in selection.refs if r.view == v.name] for v in views}
        reads: list[ViewRead] = []
        for view in views:
            names = names_of[view.name]
            if isinstance(view, CompiledView):
                features = [named_feature(view.name, name, view.features) for name in names]
                record, pin, events = pinner.feature_view(view, self._generation)
                needed_partials = {name for feature in features for name in feature.partials}
                check_contents(view, record, {EVENT_TIME_MAX.name, *needed_partials})
                rollups = None
                if not (repeatable or as_of is not None) or _all_exact(view, features):
                    rollups = Rollups.of(self.lake, view, record.table)
                reads.append(FeatureViewRead(view, features, record, pin, events, rollups))
            else:
                columns = [named_feature(view.name, name, view.features) for name in names]
                reads.append(TableViewRead(view, columns, pinner.pin(view.source.table)))
        pinner.done()
        _name_tiles(reads)
        return PinnedRead(self.lake, selection, reads, pinner.time_ms, pinner.not_included)


def _name_tiles(reads: Sequence[ViewRead]) -> None:
    """Let pins of one events table say whose events they are, where these differ."""
    pins_by_table: dict[str, set[Pin]] = {}
    for read in reads:
        pins_by_table.setdefault(read.events.table, set()).add(read.events)
    for read in reads:
        if read.tiles is not None and len(pins_by_table[read.events.table]) > 1:
            read.events = replace(read.events, tiles=read.tiles.table)


def _all_exact(view: CompiledView, features: Sequence[CompiledFeature]) -> bool:
    return all(view.partial[name].is_exact for f in features for name in f.partials)


def named_feature(view: str, name: str, features: Sequence[Feature]) -> Feature:
    """Return the feature of this name; UnknownNameError if the view does not have it."""
    feature = next((f for f in features if f.name == name), None)
    if feature is None:
        raise UnknownNameError.of("feature", name, [f.name for f in features], f"view {view!r}")
    return feature
