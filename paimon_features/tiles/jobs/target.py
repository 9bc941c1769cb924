"""The target of a tile job: one generation of a view, its tables, record and checkpoints."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, Unpack

from paimon_features.core.configuration.project_config import FlinkConfig, ProjectConfig
from paimon_features.core.errors import GenerationError
from paimon_features.core.process.callbacks import OnMessage
from paimon_features.definitions import CompiledView, Definitions
from paimon_features.flink.checkpoints import Branch, Checkpoint, find_checkpoints, read_checkpoint
from paimon_features.lake import Lake, latest_snapshot, snapshots, table_options
from paimon_features.lake.metadata import table_history
from paimon_features.lake.metadata.consumers import consumers, delete_consumer
from paimon_features.lake.metadata.rollback import roll_back_table, rollback
from paimon_features.lake.metadata.snapshots import tagged
from paimon_features.lake.ownership.commit_lock import commit_lock
from paimon_features.lake.ownership.lease import Holder, Lease, acquire
from paimon_features.lake.side_folder import generations
from paimon_features.lake.side_folder.generations import GenerationChanges, GenerationRecord
from paimon_features.lake.specs import TRAINING_PREFIX, skipped_spec
from paimon_features.lake.storage.file_path import (
    CHECKPOINTS,
    FilePath,
    checkpoint_path,
    delete_folder,
    job_state_folder,
)
from paimon_features.tiles.consumed import hold_position, release_position
from paimon_features.tiles.jobs.restart import GenerationState, TableHistory, unfinished_copy
from paimon_features.tiles.partitioning import choose_partitions, tiles_table


class ProjectParts(Protocol):
    """What jobs need of a project; ``Project`` has it."""

    @property
    def config(self) -> ProjectConfig:
        """The project's configuration."""
        ...

    @property
    def lake(self) -> Lake:
        """The lake that contains its tables."""
        ...

    @property
    def definitions(self) -> Definitions:
        """Its definitions as the file has them now."""
        ...


@dataclass(frozen=True)
class TileTarget:
    """One generation of one view in a project.

    ``state_dir`` is the project's state folder; a cluster that runs the job must see it and
    the lake under the same paths.
    """

    project: str
    lake: Lake
    view: CompiledView
    generation: int
    state_dir: Path
    flink: FlinkConfig

    @classmethod
    def of(
        cls,
        project: ProjectParts,
        view: str,
        generation: int | None = None,
        *,
        parallelism: int | None = None,
    ) -> TileTarget:
        """Choose the generation that fits the view's definition: the active one, or else the
        newest one that is being built. ``parallelism`` overrides the project's.

        Raises
        ------
        UnknownNameError
            For a view that is not defined.
        GenerationError
            If no generation matches the definition, or the given one does not.
        """
        compiled = project.definitions.view(view).compiled
        flink = project.config.flink
        return cls(
            project.config.name,
            project.lake,
            compiled,
            _choose(project.lake, compiled, generation),
            project.config.state_dir,
            flink if parallelism is None else replace(flink, parallelism=parallelism),
        )

    def __str__(self) -> str:
        return f"generation {self.generation} of view {self.view.name!r}"

    @property
    def tables(self) -> tuple[str, str]:
        """The tile table and the table of skipped rows."""
        return self.view.table(self.generation), self.view.skipped_table(self.generation)

    @property
    def events(self) -> str:
        """The events table that the job reads."""
        return self.view.source.table

    @property
    def consumer(self) -> str:
        """The consumer by which the job prevents the expiry of unread events."""
        return self.record().consumer

    @property
    def checkpoint_folder(self) -> FilePath:
        """Checkpoints and savepoints, one folder per job."""
        base = job_state_folder(self.state_dir, self.flink)
        return base / CHECKPOINTS / self.view.name / f"g{self.generation}"

    def checkpoint_at(self, path: str | Path) -> FilePath:
        """Return the folder of a checkpoint: a path, or its address on S3."""
        return checkpoint_path(self.state_dir, self.flink, path)

    def record(self) -> GenerationRecord:
        """Return the generation's current record."""
        return generations.get(self.lake, self.view.name, self.generation)

    def update(self, **changes: Unpack[GenerationChanges]) -> GenerationRecord:
        """Change the record atomically; LeaseLostError if the tables were taken over."""
        with commit_lock(self.lake, self.tables[0], f"recording the state of {self}"):
            return generations.update(self.lake, self.view.name, self.generation, **changes)

    def ledger(self, record: GenerationRecord | None = None) -> GenerationState:
        """Return the recorded and the actual state, for the rules of ``tiles.jobs.restart``."""
        record = self.record() if record is None else record
        checkpoints: dict[FilePath, Checkpoint] = {}
        checkpoints |= {c.path: c for c in find_checkpoints(self.checkpoint_folder)}
        if record.resume_path is not None:
            path = self.checkpoint_at(record.resume_path)
            if path not in checkpoints and path.is_dir():
                checkpoints[path] = read_checkpoint(path)
        return GenerationState(
            view=self.view.name,
            generation=self.generation,
            commit_user=record.commit_user,
            branch=Branch.of(record.job),
            backfilled=record.backfilled,
            backfill_snapshot=record.backfill_snapshot,
            handover_snapshot=record.handover_snapshot,
            last_committed=record.last_committed_identifier,
            tables=tuple(
                TableHistory(name, tuple(snapshots(self.lake, name))) for name in self.tables
            ),
            checkpoints=tuple(checkpoints.values()),
            events_replaced=record.events_history is not None
            and not table_history.continues(
                self.lake, self.events, record.events_history, record.handover_snapshot or 0
            ),
            copied_from=unfinished_copy(record.job),
        )

    def tiles_snapshot(self) -> int | None:
        """Return the newest snapshot of the tile table, None before its first commit."""
        newest = latest_snapshot(self.lake, self.tables[0])
        return None if newest is None else newest.id

    @contextmanager
    def owned(self, holder: Holder, purpose: str) -> Iterator[tuple[Lease, ...]]:
        """Own both tables inside the ``with`` block.

        Raises
        ------
        OwnershipError
            If another job or process owns one of them.
        """
        with ExitStack() as stack:
            yield tuple(
                stack.enter_context(acquire(self.lake, name, holder, purpose))
                for name in self.tables
            )

    def new_commit_user(self) -> str:
        """Return a new, unique commit user for a generation that starts from empty tables."""
        return f"{self.view.name}-g{self.generation}-{secrets.token_hex(4)}"

    def finish(self, job_id: str, state: str) -> GenerationRecord:
        """Record that a job has ended and its last checkpoint. Idempotent."""
        record = self.record()
        ledger = self.ledger(record)
        newest = ledger.newest
        job = dict(record.job or {})
        if job.get("job_id") == job_id:
            job.setdefault("state", state)
        updated = self.update(
            job=job,
            resume_path=record.resume_path if newest is None else str(newest.path),
            last_committed_identifier=ledger.tiles_committed,
        )
        hold_position(self.lake, updated)
        return updated

    # -- rebuild and rollback: the caller owns the tables ------------------------------------

    def rebuild(self) -> GenerationRecord:
        """Empty the generation, so that a job can start over. Increases its incarnation first."""
        tiles, skipped = self.tables
        record = self.update(
            incarnation=self.record().incarnation + 1,
            job=None,
            commit_user=None,
            last_committed_identifier=None,
            resume_path=None,
            handover_snapshot=None,
            events_history=None,
            backfilled=False,
            backfill_snapshot=None,
            first_scan=None,
        )
        for name, spec in (
            (tiles, tiles_table(self.view, self.generation, self.view.partition_days or 1)),
            (skipped, skipped_spec(skipped)),
        ):
            self.lake.drop(name, how="emptied")
            self.lake.create(spec)
        delete_consumer(self.lake, self.events, self.consumer)
        release_position(self.lake, record, self.events)
        delete_folder(self.checkpoint_folder)
        return record

    def choose_partitions(self, on_message: OnMessage) -> None:
        """Let the empty tile table have the partitions that its events require.

        Idempotent; a table with tiles keeps its partitions.
        """
        table = self.tables[0]
        if latest_snapshot(self.lake, table) is not None:
            return
        choice = choose_partitions(self.lake, self.view)
        if choice.days != table_options.partition_days(self.lake, table):
            table_options.set_partition_days(self.lake, table, choice.days)
            on_message(f"{self}: gets {choice}")

    def empty(self, on_message: OnMessage) -> None:
        """Rebuild, and report it with the training sets that cannot be made again."""
        tags = tagged(self.lake, self.tables[0])
        lost = [name for name in tags if name.startswith(TRAINING_PREFIX)]
        on_message(
            f"{self}: emptied, incarnation {self.rebuild().incarnation}"
            + "".join(
                f"; {name} was computed from it: it stays, but cannot be computed again"
                for name in lost
            )
        )

    def roll_back(
        self, targets: Mapping[str, int | None], checkpoint: Checkpoint
    ) -> GenerationRecord:
        """Roll the tables back to ``checkpoint``; ``targets`` as ``decide_rollback`` returns."""
        tiles, skipped = self.tables
        # later checkpoints are deleted first: after a crash in between, a job could otherwise
        # resume from one of them on top of tables that were rolled back, and skip events
        for other in find_checkpoints(self.checkpoint_folder):
            if other.id > checkpoint.id:
                delete_folder(other.path)
        record = self.update(resume_path=str(checkpoint.path), last_committed_identifier=None)
        if tiles in targets:
            record = self._roll_back_tiles(record, targets[tiles])
        if skipped in targets:
            self._roll_back_skipped(targets[skipped])
        return record

    def prune_checkpoints(self, kept: Checkpoint | None) -> None:
        """Delete the checkpoint folders of jobs that nothing resumes from."""
        for folder in self.checkpoint_folder.glob("*"):
            if kept is None or folder.name != kept.job_id:
                delete_folder(folder)

    def _roll_back_tiles(self, record: GenerationRecord, snapshot: int | None) -> GenerationRecord:
        if snapshot is not None:
            # a materializer rebuilds when it sees the new incarnation; consumers of others block it
            names = consumers(self.lake, record.table)
            release = tuple(name for name in names if name.startswith("materialize-"))
            return rollback(self.lake, record, snapshot, release)
        record = self.update(incarnation=record.incarnation + 1)
        # the checkpoint can contain files of these partitions, which the next run commits
        partition_days = table_options.partition_days(self.lake, record.table)
        self.lake.drop(record.table, how="emptied")
        self.lake.create(tiles_table(self.view, self.generation, partition_days))
        return record

    def _roll_back_skipped(self, snapshot: int | None) -> None:
        name = self.tables[1]
        with commit_lock(self.lake, name, f"rolling back table {name!r}"):
            if snapshot is not None:
                roll_back_table(self.lake, name, snapshot)
                return
        self.lake.drop(name, how="emptied")
        self.lake.create(skipped_spec(name))


def _choose(lake: Lake, view: CompiledView, generation: int | None) -> int:
    records = generations.load(lake, view.name)
    if generation is not None:
        record = generations.get(lake, view.name, generation)
        if record.fingerprint != view.fingerprint:
            raise GenerationError(
                f"generation {generation} of view {view.name!r} was built for a different "
                "definition of its tiles; omit --generation, or restore the old definition"
            )
        return generation
    fitting = [r for r in records if r.fingerprint == view.fingerprint]
    chosen = next((r for r in fitting if r.state == "active"), fitting[-1] if fitting else None)
    if chosen is None:
        raise GenerationError(
            f"view {view.name!r} has no generation for its current definition; "
            "'paimon-features apply' creates one"
        )
    return chosen.generation
