"""Where a tile job may start so that no event counts twice: from the recorded and actual state.

The lake adds up what is committed, so an event that is read twice counts twice. A job therefore
starts on an empty generation, or from the checkpoint that its record names, or not at all. A
commit of a streaming job carries the number of its checkpoint, so that a checkpoint older than
its tables is detected::

    checkpoints         7      8      9
    commits             7      8      9          the table contains what was read up to 9
    resume from 9                      +--->     correct
    resume from 8               +----->          would add the events between 8 and 9 again

All functions here are pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paimon_features.core.errors import GenerationError
from paimon_features.flink.checkpoints import Branch, Checkpoint
from paimon_features.lake.metadata.snapshots import BATCH_IDENTIFIER, Snapshot

REWRITTEN = "rewritten_at"
"""In the record of a job: the checkpoint of another generation whose tiles were copied."""
COPIES = "rewrites"
"""In the record of a job: the generation whose tiles it copies."""


@dataclass(frozen=True, slots=True)
class TableHistory:
    """The snapshots of a table that have not expired, oldest first."""

    name: str
    snapshots: tuple[Snapshot, ...]

    @property
    def is_empty(self) -> bool:
        return not self.snapshots

    def of_stream(self, commit_user: str) -> list[Snapshot]:
        """Return the commits of streaming jobs of this user, oldest first."""
        return [
            s
            for s in self.snapshots
            if _own(s, commit_user) and s.commit_identifier != BATCH_IDENTIFIER
        ]

    def streamed(self, commit_user: str) -> int:
        """Return the newest checkpoint committed by a streaming job of this user; -1 if none."""
        return max((s.commit_identifier for s in self.of_stream(commit_user)), default=-1)

    def foreign(self, commit_user: str) -> Snapshot | None:
        """Return the newest snapshot in which another user added rows."""
        others = [s for s in self.snapshots if s.kind == "APPEND" and not _own(s, commit_user)]
        return others[-1] if others else None

    def owned(self, commit_user: str) -> bool:
        """Return True if any snapshot of this user is left."""
        return any(_own(s, commit_user) for s in self.snapshots)


@dataclass(frozen=True, slots=True)
class Start:
    """Where a job starts: ``resume`` is a checkpoint, None starts without one.

    Without one, it reads the additions from events snapshot ``from_snapshot`` on; None stands for
    all events.
    """

    resume: Checkpoint | None = None
    from_snapshot: int | None = None


@dataclass(frozen=True, slots=True)
class GenerationState:
    """The recorded and actual state of a generation before a job starts on it.

    ``tables`` are the tile table and the table of skipped rows, ``checkpoints`` those that exist;
    the rest comes from the record. ``last_committed`` is the newest checkpoint that was seen
    committed to the tile table: the table may contain a later one, never less. ``events_replaced``:
    the events table is not the one that the tiles were computed from. ``copied_from``: the
    generation whose tiles are being copied, by a copy that did not end; the tables then contain
    nothing else.
    """

    view: str
    generation: int
    commit_user: str | None
    branch: Branch
    backfilled: bool
    backfill_snapshot: int | None
    handover_snapshot: int | None
    last_committed: int | None
    tables: tuple[TableHistory, ...]
    checkpoints: tuple[Checkpoint, ...]
    events_replaced: bool = False
    copied_from: int | None = None

    @property
    def newest(self) -> Checkpoint | None:
        """The newest checkpoint on the generation's branch."""
        on_branch = [c for c in self.checkpoints if self.branch.contains(c)]
        return max(on_branch, key=lambda c: c.id, default=None)

    @property
    def is_empty(self) -> bool:
        return all(table.is_empty for table in self.tables)

    @property
    def committed(self) -> int:
        """The newest checkpoint that the generation's job has committed; -1 if none."""
        user = self.commit_user
        seen = -1 if user is None else max(table.streamed(user) for table in self.tables)
        return max(seen, -1 if self.last_committed is None else self.last_committed)

    @property
    def tiles_committed(self) -> int | None:
        """The newest checkpoint that the tile table is known to contain; None if none.

        The other table has its own commits: not every checkpoint has a skipped row.
        """
        user = self.commit_user
        newest = -1 if user is None else self.tables[0].streamed(user)
        return newest if newest >= 0 else self.last_committed


def decide_start(ledger: GenerationState) -> Start:
    """Return where the streaming job of a generation may start.

    Raises
    ------
    GenerationError
        If it may not start; the message has the reason and the command that resolves it.
    """
    newest = ledger.newest
    if ledger.copied_from is not None:
        # not from all events, although the tables may be empty: those of the old tiles may be gone
        raise GenerationError(
            f"the copy of the tiles of generation {ledger.copied_from} to generation "
            f"{ledger.generation} of view {ledger.view!r} did not end; 'paimon-features backfill "
            f"{ledger.view} --from-generation {ledger.copied_from}' starts it again, "
            f"{_command(ledger, '--rebuild')} streams all events instead"
        )
    if ledger.is_empty and newest is None and not ledger.backfilled:
        return Start()
    if ledger.events_replaced:
        raise GenerationError(
            f"the events of view {ledger.view!r} were dropped and created again, or rolled back, "
            f"since the tiles of generation {ledger.generation} were computed: their snapshots "
            f"have other numbers now. {_command(ledger, '--rebuild')} computes all tiles from the "
            "present events"
        )
    _check_owner(ledger)
    if newest is not None:
        if ledger.committed > newest.id:
            raise GenerationError(
                f"{newest} is older than the tables of generation {ledger.generation} of view "
                f"{ledger.view!r}, which contain the commits up to checkpoint {ledger.committed}: "
                "resuming from it would count the events in between twice. "
                f"{_command(ledger, '--rollback')} rolls the tables back to it first"
            )
        return Start(resume=newest)
    # the commits of a stream could have expired; but not before those of the backfill
    streamed = bool(ledger.branch.jobs) and not ledger.tables[0].owned(ledger.commit_user or "")
    if ledger.backfilled and ledger.committed < 0 and not streamed:
        assert ledger.handover_snapshot is not None
        return Start(from_snapshot=ledger.handover_snapshot + 1)
    if ledger.handover_snapshot is not None and not ledger.backfilled:
        raise GenerationError(
            f"a backfill of generation {ledger.generation} of view {ledger.view!r} did not end; "
            f"'paimon-features backfill {ledger.view}' starts it again, "
            f"{_command(ledger, '--rebuild')} streams all events instead"
        )
    raise GenerationError(
        f"generation {ledger.generation} of view {ledger.view!r} contains tiles, but none of its "
        f"checkpoints is left ({_job_chain(ledger)}): to start over would count every event "
        f"twice. {_command(ledger, '--rebuild')} empties it and starts over; "
        f"{_command(ledger, '--rollback --checkpoint FOLDER')} resumes from a copy"
    )


def decide_backfill(ledger: GenerationState) -> bool:
    """Return True if a backfill may start: True on an empty generation, False after an unfinished
    one.

    An unfinished copy counts as one. In the second case the tables must be emptied first; they
    contain nothing else.

    Raises
    ------
    GenerationError
        If the generation contains a finished backfill, or anything of a stream.
    """
    if ledger.copied_from is not None:
        return False
    if ledger.backfilled and ledger.handover_snapshot == 0 and not ledger.branch.jobs:
        return ledger.is_empty  # there were no events
    unfinished = ledger.handover_snapshot is not None and not ledger.backfilled
    if ledger.newest is None and not ledger.backfilled and not ledger.branch.jobs:
        if ledger.is_empty:
            # there may be files that were never committed
            return not unfinished
        user = ledger.commit_user
        if unfinished and user and all(_only_batches(table, user) for table in ledger.tables):
            return False
    raise GenerationError(
        f"generation {ledger.generation} of view {ledger.view!r} is not empty: a backfill on top "
        f"would count every event twice. 'paimon-features submit {ledger.view}' resumes it; "
        f"'paimon-features backfill {ledger.view} --rebuild' empties it first"
    )


def decide_rollback(ledger: GenerationState, checkpoint: Checkpoint) -> dict[str, int | None]:
    """Return the snapshot to which each table must be rolled back before a job starts from
    ``checkpoint``.

    None is an empty table. Tables that are not ahead are not in the result.

    Raises
    ------
    GenerationError
        If the checkpoint belongs to another history, or the snapshot has expired.
    """
    user = _check_owner(ledger)
    if not ledger.branch.contains(checkpoint):
        raise GenerationError(
            f"{checkpoint} is not part of the history of generation {ledger.generation} of view "
            f"{ledger.view!r}, whose jobs were {_job_chain(ledger)}; choose a checkpoint of "
            f"these, or {_command(ledger, '--rebuild')}"
        )
    targets: dict[str, int | None] = {}
    for table in ledger.tables:
        seen = table.streamed(user)
        if table is ledger.tables[0] and seen < 0 <= checkpoint.id < ledger.committed:
            raise _expired(ledger, table, checkpoint)
        if seen <= checkpoint.id:
            continue
        # keep all before the first commit that is too new; later compactions are dropped as well
        cut = next(s.id for s in table.of_stream(user) if s.commit_identifier > checkpoint.id)
        kept = [s.id for s in table.snapshots if s.id < cut]
        if not kept and cut > 1:
            raise _expired(ledger, table, checkpoint)
        targets[table.name] = kept[-1] if kept else None
    return targets


def _expired(
    ledger: GenerationState, table: TableHistory, checkpoint: Checkpoint
) -> GenerationError:
    return GenerationError(
        f"table {table.name!r} cannot be rolled back to {checkpoint}: that snapshot has expired, "
        f"the oldest is {table.snapshots[0].id}. {_command(ledger, '--rebuild')} empties the "
        "generation and starts over"
    )


def unfinished_copy(job: Mapping[str, Any] | None) -> int | None:
    """Return the generation whose tiles a job was copying when it ended early, or still is.

    >>> unfinished_copy({"rewrites": 1}), unfinished_copy({"rewrites": 1, "state": "STOPPED"})
    (1, None)
    """
    if job is None or job.get("state") == "STOPPED":
        return None
    return job.get(COPIES)


def _check_owner(ledger: GenerationState) -> str:
    """Return the commit user of the generation; raises if another user committed rows."""
    user = ledger.commit_user
    for table in ledger.tables:
        if user is None and not table.is_empty:
            raise GenerationError(
                f"table {table.name!r} is not empty, but there is no record of its job: a job that "
                f"starts over would count twice. {_command(ledger, '--rebuild')} empties it and "
                "starts over"
            )
        stranger = None if user is None else table.foreign(user)
        if stranger is not None:
            raise GenerationError(
                f"snapshot {stranger.id} of table {table.name!r} was committed by "
                f"{stranger.commit_user!r}, not by this view's job ({user!r}): it is unknown which "
                f"events it added. {_command(ledger, '--rebuild')} empties the table and starts "
                "over"
            )
    if user is None:
        raise GenerationError(
            f"generation {ledger.generation} of view {ledger.view!r} has checkpoints but no "
            f"record of its job. {_command(ledger, '--rebuild')} starts over"
        )
    tiles, last = ledger.tables[0], ledger.last_committed
    got = tiles.streamed(user)
    # without any snapshot of this user, its commits have expired before those of maintenance
    expired = got < 0 and not tiles.is_empty and not tiles.owned(user)
    lost = last is not None and got < last and not expired
    newest = tiles.snapshots[-1].id if tiles.snapshots else 0
    if lost or newest < (ledger.backfill_snapshot or 0):
        raise GenerationError(
            f"the tables of generation {ledger.generation} of view {ledger.view!r} contain less "
            f"than its record says (commits up to checkpoint {last}, got {got}): they were "
            "rolled back or restored from a copy. "
            f"{_command(ledger, '--rebuild')} empties the generation and starts over"
        )
    return user


def _own(snapshot: Snapshot, commit_user: str) -> bool:
    return snapshot.commit_user.startswith(f"{commit_user}_")


def _only_batches(table: TableHistory, commit_user: str) -> bool:
    return all(
        _own(s, commit_user) and s.commit_identifier == BATCH_IDENTIFIER for s in table.snapshots
    )


def _command(ledger: GenerationState, option: str) -> str:
    return f"'paimon-features submit {ledger.view} {option}'"


def _job_chain(ledger: GenerationState) -> str:
    jobs: Sequence[tuple[str, int | None]] = ledger.branch.jobs
    return (
        ", ".join(job if start is None else f"{job} from checkpoint {start}" for job, start in jobs)
        or "no job is recorded"
    )
