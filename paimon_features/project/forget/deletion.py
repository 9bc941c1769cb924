"""Delete entities from a project, table by table; interrupted anywhere, it can be repeated.

::

    leases of all tables that can contain them                  or an error that names the owner
    online records          found by key, and by the tiles of composite entities
    request log, rejected rows, training sets, ...              one OVERWRITE commit per table
    tiles of every generation
    events, feedback        late: until then a repetition finds all composite entities
    tables with the entity's samples of a loop    last: they say which feedback is the entity's
    online records          again: a materializer may have written one meanwhile

A tile job reads the additions of the events table. Additions that it has not read yet would bring
the entity back, so every generation with tiles must have read all events first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from paimon_features.core.configuration.project_config import SALT_VARIABLE
from paimon_features.core.errors import GenerationError, OwnershipError, UnknownNameError
from paimon_features.core.process.callbacks import OnMessage, OnPhase, ignore_message, ignore_phase
from paimon_features.core.types.array_types import Bools
from paimon_features.lake import Lake, iter_batches, latest_snapshot
from paimon_features.lake.metadata.consumers import consumers
from paimon_features.lake.metadata.snapshots import Snapshot, snapshot_ids, snapshots
from paimon_features.lake.ownership.lease import acquire
from paimon_features.lake.side_folder import generations
from paimon_features.lake.side_folder.generations import GenerationRecord
from paimon_features.lake.specs import (
    OUTCOMES_PREFIX,
    PREDICTIONS_PREFIX,
    TILE_DAY,
    TILE_START,
)
from paimon_features.project import Project
from paimon_features.project.forget.entities import EntitySet
from paimon_features.project.forget.online import delete_records
from paimon_features.project.forget.rejected import COLUMNS as REJECTED_COLUMNS
from paimon_features.project.forget.rejected import RejectedRows
from paimon_features.project.forget.remains import Remaining, remaining
from paimon_features.project.forget.request_log import (
    LOGGED_COLUMNS,
    PREDICTED_COLUMNS,
    LoggedEntities,
    PredictedEntities,
)
from paimon_features.project.forget.rewriting import TableRows, delete_rows, find_rows
from paimon_features.project.forget.samples import SampledLoop, loops
from paimon_features.serving.request_log.commit import served_table
from paimon_features.serving.request_log.log import optional_salt
from paimon_features.tiles.consumed import release_older_events
from paimon_features.tiles.jobs.jobs import NOT_RUNNING, job_state

REJECTED_PREFIX = "rejected_"


@dataclass(frozen=True, slots=True)
class TableDeletion:
    """One table: ``rows`` of the entities in ``partitions``; ``snapshot`` without them, if any."""

    table: str
    rows: int
    partitions: int
    snapshot: int | None = None


@dataclass
class ForgetReport:
    """What was deleted, or would be. ``notes`` say what was not searched or cannot be found."""

    entities: int
    dry_run: bool
    tables: list[TableDeletion] = field(default_factory=list)
    online: dict[str, int] = field(default_factory=dict)
    remains: list[Remaining] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(table.rows for table in self.tables)


class Deletion:
    """The deletion of some entities of a project.

    ``online`` is false to leave the online store out.
    """

    def __init__(
        self,
        project: Project,
        entities: EntitySet,
        *,
        online: bool = True,
        on_message: OnMessage = ignore_message,
        on_phase: OnPhase = ignore_phase,
    ) -> None:
        self._on_phase = on_phase
        self.project, self.lake, self.entities = project, project.lake, entities
        self._online, self._say = online, on_message
        self._views = {
            name: view.compiled
            for name, view in project.definitions.views.items()
            if entities.are_keys_of(view.compiled.keys)
        }
        self._loops = list(loops(project.lake, project.definitions, entities))
        self._samples: dict[str, EntitySet] = {}
        """The samples of the entities, by the tables of their loop; known once they are read."""

    def dry_run(self) -> ForgetReport:
        """Return what would be deleted; nothing is changed, and no lease is needed."""
        report = ForgetReport(len(self.entities), True)
        self._samples = self._read_samples()
        for rows in self._find(self._composites(), report):
            report.tables.append(_described(rows))
        report.remains = remaining(self.lake, [t.table for t in report.tables if t.rows])
        self._note(report)
        return report

    def carry_out(self) -> ForgetReport:
        """Delete them.

        Raises
        ------
        OwnershipError
            If a job or process owns one of the tables; nothing is deleted then.
        GenerationError
            If a generation has not read all events; nothing is deleted then.
        OnlineStoreError
            If the online store does not respond.
        """
        report = ForgetReport(len(self.entities), False)
        with ExitStack() as leases:
            for table in self._tables():
                leases.enter_context(acquire(self.lake, table, purpose="delete entities"))
            for record in self._generations():
                self._check(record)
            self._samples = self._read_samples()
            composites = self._composites()
            self._delete_records(composites, report)
            for rows in self._find(composites, report):
                if rows.rows:
                    self._say(f"{rows.table}: deleting {rows.rows:,} rows")
                report.tables.append(_described(rows, delete_rows(self.lake, rows)))
            for record in self._generations():
                release_older_events(self.lake, record)
            self._delete_records(composites, report)
        report.remains = remaining(self.lake, self._tables())
        self._note(report)
        return report

    def _tables(self) -> list[str]:
        """Return the tables that can contain the entities, in the order in which they are
        rewritten."""
        log = served_table(self.project.name)
        tables = [
            name
            for name in self.lake.list()
            if name == log
            or self._predicted_keys(name)
            or (name.startswith(REJECTED_PREFIX) and self._may_reject(name))
            or name in self._skipped()
            or self._loop_of(name) is not None
            or self.entities.are_keys_of(self._columns(name))
        ]
        tiles = {record.table for record in self._generations()}
        events = {source.table for source in self.project.definitions.sources.values()}

        origins = {table for loop in self._loops for table in loop.origins}

        def rank(name: str) -> tuple[int, str]:
            if name in origins:
                return 3, name
            return (name in tiles) + 2 * (name in events or name.startswith("events_")), name

        return sorted(tables, key=rank)

    def _loop_of(self, table: str) -> SampledLoop | None:
        """Return the loop whose samples name the rows of a table, if it can be searched."""
        return next((loop for loop in self._loops if loop.origins and table in loop.tables), None)

    def _read_samples(self) -> dict[str, EntitySet]:
        out: dict[str, EntitySet] = {}
        for loop in self._loops:
            out |= dict.fromkeys(loop.tables, loop.samples(self.lake, self.entities))
        return out

    def _columns(self, table: str) -> list[str]:
        """None of a table that was dropped meanwhile."""
        try:
            return list(self.lake.schema(table).names)
        except UnknownNameError:
            return []

    def _predicted_keys(self, table: str) -> list[str]:
        """Return the entity keys of the model of a table of predictions or outcomes, if it can
        contain these entities; none for other tables."""
        for prefix in (PREDICTIONS_PREFIX, OUTCOMES_PREFIX):
            if table.startswith(prefix):
                try:
                    manifest = self.project.models.manifest(table.removeprefix(prefix))
                except UnknownNameError:  # another table, of this name by chance
                    return []
                keys = [key.name for key in manifest.signature.entities]
                return keys if self.entities.are_keys_of(keys) else []
        return []

    def _may_reject(self, table: str) -> bool:
        """Return True if the events of a rejected table have the keys.

        Also where that is unknown.
        """
        schemas = {s.rejected_table: s.schema for s in self.project.definitions.sources.values()}
        return table not in schemas or self.entities.are_keys_of(schemas[table])

    def _generations(self) -> list[GenerationRecord]:
        return [
            r for view in generations.views(self.lake) for r in generations.load(self.lake, view)
        ]

    def _skipped(self) -> dict[str, list[str]]:
        """Return the tables of skipped events that name these entities, with the keys of their
        views."""
        out = {}
        for record in self._generations():
            reserved = (TILE_DAY, TILE_START)
            keys = [k for k in self.lake.table(record.table).primary_keys if k not in reserved]
            named = self.entities.are_keys_of(keys) or self._loop_of(record.skipped_table)
            if named and self.lake.exists(record.skipped_table):
                out[record.skipped_table] = keys
        return out

    def _skipped_by(self, entities: EntitySet, keys: list[str]) -> Callable[[pa.Table], Bools]:
        return lambda rows: entities.of_skipped(rows.column("detail").to_pylist(), keys)

    def _check(self, record: GenerationRecord) -> None:
        """Raise unless the generation's job has stopped after it had read all events."""
        state = job_state(self.lake, record)
        if state not in NOT_RUNNING:
            raise OwnershipError(
                f"generation {record.generation} of view {record.view!r} has a {state} job; "
                f"'paimon-features submit {record.view} --stop' stops it, then repeat this command"
            )
        if record.job is None or latest_snapshot(self.lake, record.table) is None:
            return
        events = record.job["events"]
        first = consumers(self.lake, events).get(record.consumer, 1)
        unread = [s.id for s in _from(self.lake, events, first) if s.kind == "APPEND"]
        if unread:
            raise GenerationError(
                f"generation {record.generation} of view {record.view!r} has not read "
                f"{len(unread)} commits of {events!r}, which could bring a deleted entity back: "
                f"'paimon-features submit {record.view} --bounded' reads them, or "
                f"'paimon-features backfill {record.view} --rebuild' computes all tiles again; "
                "drop a generation that is not needed any more"
            )

    def _composites(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return the complete keys of the entities, by view.

        Those of more columns from the tiles.
        """
        out: dict[str, list[tuple[Any, ...]]] = {}
        views = dict.fromkeys(self._views, self.entities)
        for loop in self._loops:
            if loop.origins:
                views |= dict.fromkeys(loop.views, self._samples[loop.source.table])
        for name, entities in views.items():
            keys = list(self.project.definitions.view(name).compiled.keys)
            if set(keys) == set(entities.columns):
                places = [entities.columns.index(key) for key in keys]
                out[name] = [tuple(key[p] for p in places) for key in sorted(entities.keys)]
                continue
            composites: set[tuple[Any, ...]] = set()
            for record in generations.load(self.lake, name):
                if latest_snapshot(self.lake, record.table) is None:
                    continue
                for batch in iter_batches(self.lake, record.table, keys):
                    rows = pa.Table.from_batches([batch])
                    matches = rows.filter(pa.array(entities.mask(rows)))
                    composites.update(zip(*(c.to_pylist() for c in matches.columns), strict=True))
            out[name] = sorted(composites)
        return out

    def _delete_records(
        self, composites: dict[str, list[tuple[Any, ...]]], report: ForgetReport
    ) -> None:
        if not self._online:
            return
        for name, keys in composites.items():
            view = self.project.definitions.view(name).compiled
            if view.is_online and keys:
                deleted = delete_records(
                    self.project.store, self.project.name, name, view.keys, keys
                )
                report.online[name] = report.online.get(name, 0) + deleted

    def _find(
        self, composites: dict[str, list[tuple[Any, ...]]], report: ForgetReport
    ) -> Iterator[TableRows]:
        """Yield the rows of each table, found when the one before has been dealt with."""
        skipped = self._skipped()
        tables = self._tables()
        for number, table in enumerate(tables):
            self._on_phase(f"reading {table}", number, len(tables))
            if table == served_table(self.project.name):
                yield self._find_logged(table, composites, report)
            elif keys := self._predicted_keys(table):
                yield self._find_predicted(table, keys, composites, report)
            elif table.startswith(REJECTED_PREFIX):
                yield self._find_rejected(table, report)
            else:
                entities = self._samples.get(table, self.entities)
                if table in skipped:
                    mask = self._skipped_by(entities, skipped[table])
                    yield find_rows(self.lake, table, ("detail",), mask)
                else:
                    yield find_rows(self.lake, table, entities.columns, entities.mask)

    def _find_logged(
        self, table: str, composites: dict[str, list[tuple[Any, ...]]], report: ForgetReport
    ) -> TableRows:
        newest = latest_snapshot(self.lake, table)
        keys = {n: list(v.compiled.keys) for n, v in self.project.definitions.views.items()}
        salt = optional_salt()
        logged = LoggedEntities(self.entities, keys, composites, salt)
        if newest is not None:
            logged.scan(self.lake, table, newest.ref)
        self._note_hidden(table, logged.hidden, report)
        return find_rows(self.lake, table, LOGGED_COLUMNS, logged.mask)

    def _find_predicted(
        self,
        table: str,
        keys: list[str],
        composites: dict[str, list[tuple[Any, ...]]],
        report: ForgetReport,
    ) -> TableRows:
        complete: set[tuple[Any, ...]] = set()
        for name, composite_keys in composites.items():
            view_keys = list(self.project.definitions.view(name).compiled.keys)
            if set(view_keys) == set(keys):
                places = [view_keys.index(key) for key in keys]
                complete.update(tuple(key[place] for place in places) for key in composite_keys)
        predicted = PredictedEntities(self.entities, keys, complete, optional_salt())
        rows = find_rows(self.lake, table, PREDICTED_COLUMNS, predicted.mask)
        self._note_hidden(table, predicted.hidden, report)
        return rows

    def _note_hidden(self, table: str, rows: int, report: ForgetReport) -> None:
        if rows:
            report.notes.append(
                f"{table}: {rows:,} rows have entities hashed with another salt and were not "
                f"compared; set {SALT_VARIABLE} to the servers' salt and repeat this"
            )

    def _find_rejected(self, table: str, report: ForgetReport) -> TableRows:
        rejected = RejectedRows(self.entities)
        rows = find_rows(self.lake, table, REJECTED_COLUMNS, rejected.mask)
        if rejected.by_value or rejected.others:
            report.notes.append(
                f"{table}: {rejected.by_value + rejected.others:,} rows without readable columns "
                "were searched for the values of the key as fields of their text; "
                f"{rejected.by_value:,} have them"
            )
        return rows

    def _note(self, report: ForgetReport) -> None:
        sources = {view.source.name for view in self._views.values()}
        others = [
            name
            for name, view in self.project.definitions.views.items()
            if view.compiled.source.name in sources and name not in self._views
        ]
        if others:
            report.notes.append(
                f"tiles of {', '.join(sorted(others))} have other entities: they keep what these "
                "events added to them, until 'paimon-features backfill VIEW --rebuild'"
            )
        for loop in self._loops:
            if not loop.origins:
                report.notes.append(
                    f"not searched: {', '.join(sorted(loop.tables)) or loop.source.table}: samples "
                    f"are named by {', '.join(loop.source.sample_keys)}, and no table has these "
                    f"columns with {', '.join(self.entities.columns)}; 'paimon-features forget "
                    f"--entity {next(iter(loop.source.sample_keys))}=...' deletes samples by name"
                )
        serve = self.project.config.serve
        for spool in dict.fromkeys(filter(None, (serve.request_log, serve.prediction_log))):
            if spool.is_dir() and any(spool.rglob("*.*")):
                report.notes.append(
                    f"files of the request log in {spool} were not searched; 'paimon-features "
                    "request-log' ingests them, then repeat this"
                )
        report.notes.append(
            "not searched: files outside the warehouse (inputs, exports, caches of trainers, "
            "models, backups), fitted transformers, monitoring reports, states of iterations"
        )


def _described(found: TableRows, snapshot: int | None = None) -> TableDeletion:
    return TableDeletion(found.table, found.rows, len(found.partitions), snapshot)


def _from(lake: Lake, table: str, first: int) -> Sequence[Snapshot]:
    newest = latest_snapshot(lake, table)
    if newest is None or first > newest.id:
        return ()
    oldest = snapshot_ids(lake, table)[0]
    return list(snapshots(lake, table, max(first, oldest)))
