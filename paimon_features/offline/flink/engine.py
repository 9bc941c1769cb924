"""Historical features by Flink: rows are staged in the lake, a batch job joins them, the client
finishes the features.

::

    rows ─ bounds of windows ─▶ staging_x_rows ─┐
                        tiles_<view>_g<N> ──────┼─▶ Flink ─▶ staging_x_tiles ─┐
                        events_<source> ────────┘       └──▶ staging_x_edges ─┴─▶ finish ─▶ features

The staging tables are dropped at the end, also after an error.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa

from paimon_features.core.configuration.project_config import ProjectConfig
from paimon_features.core.errors import JobError
from paimon_features.core.process.callbacks import OnMessage
from paimon_features.core.process.flink_rest import FlinkRest
from paimon_features.core.types.schema import DataType, arrow_schema
from paimon_features.flink.cluster import cluster_address
from paimon_features.flink.gateway import start_gateway
from paimon_features.lake import Lake, append_stream, iter_batches, latest_snapshot, table_options
from paimon_features.lake.reading.table_reader import scan_options
from paimon_features.lake.specs import EVENT_DAY
from paimon_features.lake.writing.staging import Staging
from paimon_features.offline.flink.history_rows import NeededDays, finish_features, rows_to_stage
from paimon_features.offline.flink.history_sql import CHUNK, JoinLayout, edges_sql, tiles_sql
from paimon_features.offline.reading.entity_rows import EntityRows
from paimon_features.offline.reading.spill import ChunkFeatures
from paimon_features.offline.reading.view_reads import FeatureViewRead

MESSAGE_EVERY_S = 10.0
"""Interval of the messages about a running job."""
SHORT_LIVED_ROWS = 200_000
"""A local job over at most this number of rows ends before Java's second compiler pays off."""


ATTEMPTS = 3
"""How often a job is started on a cluster whose task managers are lost under it."""
_LOST = (
    "no longer reachable",
    "unexpectedly closed by remote task manager",
    "Lost connection to task manager",
    "Heartbeat of TaskManager",
    "TaskExecutor",
    "Connection refused",
    "NoResourceAvailable",
)
"""What Flink says of a job whose task manager has ended."""


_Collect = Callable[[Callable[[int], pa.Table]], ChunkFeatures]


def _lost_host(error: JobError) -> bool:
    texts = [str(error), *getattr(error, "__notes__", ())]
    return any(sign in text for sign in _LOST for text in texts)


@dataclass(frozen=True)
class FlinkHistoryEngine:
    """Computes feature views by Flink batch jobs, one for each view.

    ``cluster`` is ``host:port`` of a session cluster that sees the lake under the same path;
    None runs the jobs in the JVM of this process. ``on_message`` gets a line of text at each stage.
    """

    state_dir: Path
    parallelism: int
    cluster: str | None = None
    on_message: OnMessage | None = None
    name: str = "flink"
    parts: bool = True
    """Whether jobs in this process's JVM run the local join in their subtasks, where Python can run
    in threads of it; else they are SQL, as on a cluster, whose hosts may have no Python."""

    @classmethod
    def of(
        cls, config: ProjectConfig, cluster: str | None = None, on_message: OnMessage | None = None
    ) -> FlinkHistoryEngine:
        """Return the engine of a project; cluster ``"local"`` is the project's own.

        Raises
        ------
        ConfigurationError
            For cluster ``"local"`` if it does not run.
        """
        address = cluster_address(config.state_dir, cluster)
        return cls(config.state_dir, config.flink.parallelism, address, on_message)

    def join(
        self,
        lake: Lake,
        read: FeatureViewRead,
        entity_rows: EntityRows,
        spill_folder: str | None,
        tick: Callable[[int], None],
    ) -> ChunkFeatures:
        """Compute all rows of a view by one job, repeated if the cluster loses a task manager.

        Raises
        ------
        SetupError, MissingExtraError
            Without Java or pyflink; the message says what to install.
        JobError
            If the job fails, or the cluster does not answer.
        """
        collected = partial(_collected, entity_rows, spill_folder, tick)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._join(lake, read, entity_rows, collected)
            except JobError as error:
                # the tables of the attempt are gone; the next one has its own
                if self.cluster is None or attempt == ATTEMPTS or not _lost_host(error):
                    raise
                self._report(f"{read.name}: the cluster has lost a process; the job starts again")
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _join(
        self, lake: Lake, read: FeatureViewRead, entity_rows: EntityRows, collected: _Collect
    ) -> ChunkFeatures:
        from paimon_features.offline.flink import batch_job as history

        if self.cluster is not None:
            FlinkRest(self.cluster).overview()
        # before anything else, so that a missing Java is an error at once
        short_lived = self.cluster is not None or entity_rows.count <= SHORT_LIVED_ROWS
        start_gateway(self.state_dir, short_lived=short_lived)
        if self.cluster is None and self.parts and history.can_run_parts():
            return self._join_parts(lake, read, entity_rows, collected)
        layout = JoinLayout(read.view, read.features)
        with Staging(lake) as staging:
            staged = _Staged(lake, staging, layout)
            needed = staged.put(entity_rows, read)
            statements = staged.statements(read, needed)
            if statements:
                self._report(f"{read.name}: {needed.rows:,} rows staged; Flink joins them")
                history.run(
                    lake,
                    statements,
                    f"historical features of {read.name}",
                    parallelism=self.parallelism,
                    cluster=self.cluster,
                    state_dir=self.state_dir,
                    tick=self._ticker(read.name),
                )
                self._report(f"{read.name}: joined; finishing the features")

            def finished(chunk: int) -> pa.Table:
                keys, as_of_ms = entity_rows.keys(chunk, read)
                own_events = read.own_events(keys)
                return finish_features(layout, as_of_ms, *staged.get(chunk), own_events)

            return collected(finished)

    def _join_parts(
        self, lake: Lake, read: FeatureViewRead, entity_rows: EntityRows, collected: _Collect
    ) -> ChunkFeatures:
        from paimon_features.offline.flink import batch_job as history
        from paimon_features.offline.flink.join_parts import PartJoin

        with Staging(lake) as staging:
            join = PartJoin.create(lake, staging, read, self.parallelism)
            count = join.stage(entity_rows)
            self._report(f"{read.name}: {count:,} rows staged; Flink joins them")
            history.run_parts(
                join,
                f"historical features of {read.name}",
                parallelism=self.parallelism,
                state_dir=self.state_dir,
                tick=self._ticker(read.name),
            )
            self._report(f"{read.name}: joined; reading the features")
            return collected(lambda chunk: join.results(chunk, entity_rows.size(chunk)))

    def _ticker(self, view: str) -> Callable[[float], None]:
        """Return a callback that reports a running job at intervals."""
        reported_s = 0.0

        def tick(elapsed_s: float) -> None:
            nonlocal reported_s
            if elapsed_s >= reported_s + MESSAGE_EVERY_S:
                reported_s = elapsed_s
                self._report(f"{view}: Flink has joined for {elapsed_s:.0f} s")

        return tick

    def _report(self, text: str) -> None:
        if self.on_message is not None:
            self.on_message(text)


def _collected(
    entity_rows: EntityRows,
    spill_folder: str | None,
    tick: Callable[[int], None],
    results_of: Callable[[int], pa.Table],
) -> ChunkFeatures:
    """Return the results of all chunks, each by its number."""
    results = ChunkFeatures(entity_rows.chunks, spill_folder)
    try:
        for chunk in range(entity_rows.chunks):
            results.append(results_of(chunk))
            tick(entity_rows.size(chunk))
    except BaseException:
        results.close()
        raise
    return results


class _Staged:
    """The three tables between this process and Flink. Chunks are partitions of the results."""

    def __init__(self, lake: Lake, staging: Staging, layout: JoinLayout) -> None:
        self.lake, self.layout = lake, layout
        self.rows = staging.create("rows", layout.rows_columns)
        by_chunk = (CHUNK,)
        self.tiles = staging.create("tiles", layout.tiles_columns, by_chunk)
        self.edges = staging.create("edges", layout.edges_columns, by_chunk)

    def put(self, entity_rows: EntityRows, read: FeatureViewRead) -> NeededDays:
        """Stage all rows, a chunk at a time; returns the data they need."""
        needed = NeededDays()

        def chunks() -> Iterator[pa.Table]:
            for chunk in range(entity_rows.chunks):
                keys, as_of_ms = entity_rows.keys(chunk, read)
                yield rows_to_stage(self.layout, chunk, keys, as_of_ms, needed)

        some = (table for table in chunks() if table.num_rows)
        first = next(some, None)
        if first is not None:
            append_stream(self.lake, self.rows, itertools.chain([first], some))
        return needed

    def statements(self, read: FeatureViewRead, needed: NeededDays) -> list[str]:
        """Return the statements to run; none for a table without commits."""
        statements = []
        days, pin = needed.tile_days, read.tiles
        if days is not None and pin is not None and pin.snapshot_id is not None:
            options = scan_options(self.lake, pin.table, pin.snapshot_id)
            partition_days = table_options.partition_days(self.lake, pin.table)
            statements.append(
                tiles_sql(
                    self.layout, self.rows, self.tiles, pin.table, options, days, partition_days
                )
            )
        pin = read.events
        if needed.event_days and pin.snapshot_id is not None:
            options = scan_options(self.lake, pin.table, pin.snapshot_id)
            has_days = EVENT_DAY in self.lake.schema(pin.table).names  # feedback has none
            event_days = sorted(needed.event_days) if has_days else None
            partition_days = table_options.partition_days(self.lake, pin.table)
            statements.append(
                edges_sql(self.layout, self.rows, self.edges, options, event_days, partition_days)
            )
        return statements

    def get(self, chunk: int) -> tuple[pa.Table, pa.Table]:
        """Return the tile and edge results of a chunk."""
        return (
            self._get(self.tiles, self.layout.tiles_columns, chunk),
            self._get(self.edges, self.layout.edges_columns, chunk),
        )

    def _get(self, table: str, columns: dict[str, DataType], chunk: int) -> pa.Table:
        schema = arrow_schema(columns)
        if latest_snapshot(self.lake, table) is None:
            return schema.empty_table()
        only = {CHUNK: (chunk, chunk + 1)}
        batches = iter_batches(self.lake, table, partitions=only)
        return pa.concat_tables(
            [schema.empty_table(), *(pa.Table.from_batches([b]).cast(schema) for b in batches)]
        )
