"""What a tile job works on: one generation of a view, its tables, record and checkpoints."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paimon_features.config import FlinkConfig
from paimon_features.definitions import CompiledView
from paimon_features.errors import GenerationError
from paimon_features.flink.submission.restart import (
    Branch,
    Checkpoint,
    Ledger,
    TableHistory,
    find_checkpoints,
    read_checkpoint,
)
from paimon_features.planning.plan import tiles_table
from paimon_features.tables import Lake, generations, snapshots
from paimon_features.tables.consumers import consumers, delete_consumer
from paimon_features.tables.files import locked
from paimon_features.tables.generations import GenerationRecord
from paimon_features.tables.lease import Holder, Lease, acquire
from paimon_features.tables.rollback import rollback
from paimon_features.tables.specs import skipped_spec

if TYPE_CHECKING:
    from paimon_features.project import Project


@dataclass(frozen=True)
class TileTarget:
    """One generation of one view in a project.

    ``state_dir`` is the project's state folder; a cluster that runs the job has to see it and
    the lake under the same paths.
    """

    project: str
    lake: Lake
    view: CompiledView
    generation: int
    state_dir: Path
    flink: FlinkConfig

    @classmethod
    def of(cls, project: Project, view: str, generation: int | None = None) -> TileTarget:
        """The generation whose tiles the view's definition means: the one that is read, or else
        the newest one that is being built.

        Raises
        ------
        UnknownNameError
            For a view that is not defined.
        GenerationError
            If no generation fits the definition, or the given one does not.
        """
        compiled = project.view(view)
        return cls(
            project.name,
            project.lake,
            compiled,
            _choose(project.lake, compiled, generation),
            project.config.state_dir,
            project.config.flink,
        )

    def __str__(self) -> str:
        return f"generation {self.generation} of view {self.view.name!r}"

    @property
    def tables(self) -> tuple[str, str]:
        """The tile table and the table of skipped rows."""
        return self.view.table(self.generation), self.view.skipped_table(self.generation)

    @property
    def events(self) -> str:
        """The table that is read."""
        return self.view.source.table

    @property
    def consumer(self) -> str:
        """The name under which the job holds back the expiry of events."""
        return self.record().consumer

    @property
    def checkpoint_folder(self) -> Path:
        """Checkpoints and savepoints, one folder per job."""
        return self.state_dir / "checkpoints" / self.view.name / f"g{self.generation}"

    def record(self) -> GenerationRecord:
        """The generation as it is written now."""
        return generations.get(self.lake, self.view.name, self.generation)

    def update(self, **changes: Any) -> GenerationRecord:
        """Change the record in one step."""
        return generations.update(self.lake, self.view.name, self.generation, **changes)

    def ledger(self, record: GenerationRecord | None = None) -> Ledger:
        """What is recorded and what is there, for the rules of
        ``paimon_features.flink.submission.restart``."""
        record = self.record() if record is None else record
        found = {c.path: c for c in find_checkpoints(self.checkpoint_folder)}
        if record.resume_path is not None and Path(record.resume_path).is_dir():
            resume = read_checkpoint(Path(record.resume_path))
            found.setdefault(resume.path, resume)
        return Ledger(
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
            checkpoints=tuple(found.values()),
        )

    @contextmanager
    def owned(self, holder: Holder, purpose: str) -> Iterator[tuple[Lease, ...]]:
        """Own both tables inside the block.

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
        """A name for the commits of a generation that begins anew; none had it before."""
        return f"{self.view.name}-g{self.generation}-{secrets.token_hex(4)}"

    def finish(self, job_id: str, state: str) -> GenerationRecord:
        """Write down that a job has ended and where it left off; harmless to repeat."""
        record = self.record()
        ledger = self.ledger(record)
        newest = ledger.newest
        job = dict(record.job or {})
        if job.get("job_id") == job_id:
            job.setdefault("state", state)
        return self.update(
            job=job,
            resume_path=record.resume_path if newest is None else str(newest.path),
            last_committed_identifier=ledger.tiles_committed,
        )

    # -- ways back: call them as the tables' owner -----------------------------------------

    def rebuild(self) -> GenerationRecord:
        """Empty the generation, so that a job may begin anew. Its incarnation grows first."""
        tiles, skipped = self.tables
        record = self.update(
            incarnation=self.record().incarnation + 1,
            job=None,
            commit_user=None,
            last_committed_identifier=None,
            resume_path=None,
            handover_snapshot=None,
            backfilled=False,
            backfill_snapshot=None,
        )
        for name, spec in (
            (tiles, tiles_table(self.view, self.generation)),
            (skipped, skipped_spec(skipped)),
        ):
            self.lake.drop(name)
            self.lake.create(spec)
        delete_consumer(self.lake, self.events, self.consumer)
        shutil.rmtree(self.checkpoint_folder, ignore_errors=True)
        return record

    def roll_back(
        self, targets: Mapping[str, int | None], checkpoint: Checkpoint
    ) -> GenerationRecord:
        """Take the tables back to where ``checkpoint`` was; ``targets`` as they were decided."""
        tiles, skipped = self.tables
        # what lies behind the checkpoint goes first: with the tables rolled back and it still
        # there, a crash in between would let a job go on from it and leave events out
        for other in find_checkpoints(self.checkpoint_folder):
            if other.id > checkpoint.id:
                shutil.rmtree(other.path)
        record = self.update(resume_path=str(checkpoint.path), last_committed_identifier=None)
        if tiles in targets:
            record = self._roll_back_tiles(record, targets[tiles])
        if skipped in targets:
            self._roll_back_skipped(targets[skipped])
        return record

    def prune_checkpoints(self, kept: Checkpoint | None) -> None:
        """Delete the checkpoint folders of jobs that nothing goes on from."""
        for folder in self.checkpoint_folder.glob("*"):
            if kept is None or folder.name != kept.job_id:
                shutil.rmtree(folder, ignore_errors=True)

    def _roll_back_tiles(self, record: GenerationRecord, snapshot: int | None) -> GenerationRecord:
        if snapshot is not None:
            # a materializer rebuilds when it sees the new incarnation; other readers hold it back
            names = consumers(self.lake, record.table)
            release = tuple(name for name in names if name.startswith("materialize-"))
            return rollback(self.lake, record, snapshot, release)
        record = self.update(incarnation=record.incarnation + 1)
        self.lake.drop(record.table)
        self.lake.create(tiles_table(self.view, self.generation))
        return record

    def _roll_back_skipped(self, snapshot: int | None) -> None:
        name = self.tables[1]
        with locked(self.lake.lock_path(name), f"rolling back table {name!r}"):
            if snapshot is not None:
                self.lake.table(name).rollback_to(snapshot)
                return
        self.lake.drop(name)
        self.lake.create(skipped_spec(name))


def _choose(lake: Lake, view: CompiledView, generation: int | None) -> int:
    records = generations.load(lake, view.name)
    if generation is not None:
        record = generations.get(lake, view.name, generation)
        if record.fingerprint != view.fingerprint:
            raise GenerationError(
                f"generation {generation} of view {view.name!r} was made for other tiles than the "
                "view now defines; leave --generation out, or bring the old definition back"
            )
        return generation
    fitting = [r for r in records if r.fingerprint == view.fingerprint]
    chosen = next((r for r in fitting if r.state == "active"), fitting[-1] if fitting else None)
    if chosen is None:
        raise GenerationError(
            f"view {view.name!r} has no generation for its present definition; "
            "'paimon-features apply' makes one"
        )
    return chosen.generation
