"""What a stream has committed, recorded so that it outlives snapshots and checkpoints.

A stream continues at its newest checkpoint. That this is not older than its tables was decided from
the snapshots alone, which expire: without them a stream whose checkpoints were lost looked like one
that never ran, and read its topic again from the beginning. The ledger of the source therefore has
a record for each stream, written before its job starts::

    begin                        settle (whoever owns the tables next, before it writes)
      |  commits 1, 2, 3 ...       |
    seen = snapshot 7            committed = 3, seen = snapshot 12

Only the owner of the tables commits to them: commits are looked for between ``seen`` and the next
owner. If snapshots in between have expired by then, ``unknown`` says that some may not be known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from paimon_features.ingest.runs import IngestRun
from paimon_features.lake import Lake
from paimon_features.lake.metadata import table_history
from paimon_features.lake.metadata.snapshots import read_snapshot_file, snapshot_ids

NOTHING = -1
"""The newest checkpoint of a stream that has committed none."""


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """A stream of a source.

    ``branch`` are its jobs since the start or the last ``--restart``: (job id, checkpoint it
    resumed from). ``committed`` is the newest checkpoint in its tables. ``seen`` has for each table
    the newest snapshot up to which commits were looked for, and the mark of the table's history.
    ``reads`` are the creation times of the tables that it writes and reads, by path; ``topic_id``
    is Kafka's id of its topic. ``running`` is True from the start of a job until its commits are
    recorded.
    """

    id: str
    branch: tuple[tuple[str, int | None], ...] = ()
    committed: int = NOTHING
    seen: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    reads: Mapping[str, int] = field(default_factory=dict)
    topic_id: str | None = None
    running: bool = False
    unknown: bool = False

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> StreamRecord:
        """Return the record in the ledger."""
        branch = tuple((job, start) for job, start in raw["branch"])
        seen = {table: (newest, mark) for table, (newest, mark) in raw["seen"].items()}
        return cls(**{**raw, "branch": branch, "seen": seen})

    def to_document(self) -> dict[str, Any]:
        """Return as the ledger stores it."""
        return asdict(self)

    def begun(
        self,
        lake: Lake,
        tables: Iterable[str],
        *,
        branch: tuple[tuple[str, int | None], ...],
        reads: Mapping[str, int],
        topic_id: str | None,
    ) -> StreamRecord:
        """Return the record of a job that is about to start; the caller owns the tables."""
        return replace(
            self,
            branch=branch,
            reads=reads,
            topic_id=topic_id,
            seen=_seen(lake, tables),
            running=True,
        )

    def settled(self, lake: Lake) -> StreamRecord:
        """Return the record with what the last job has committed; the caller owns the tables."""
        if not self.running:
            return self
        if self.replaced(lake) is not None:
            return replace(self, unknown=True)
        run, committed, unknown = IngestRun(self.id, None), self.committed, self.unknown
        for table, (seen, _) in self.seen.items():
            ids = snapshot_ids(lake, table)
            commits = list(_commits(lake, table, [i for i in ids if i > seen], run))
            committed = max([committed, *commits])
            # the job may have committed more than is left, unless what is left is its newest
            unknown = unknown or (not commits and bool(ids) and ids[0] > seen + 1)
        seen_now = _seen(lake, self.seen)
        return replace(self, committed=committed, unknown=unknown, seen=seen_now, running=False)

    def replaced(self, lake: Lake) -> str | None:
        """Return the first of its tables whose rows were removed since, None if there is none: one
        that was created again, or rolled back to before what the stream may have committed."""
        for table, (newest, mark) in self.seen.items():
            if not table_history.continues(lake, table, mark, newest):
                return table
            if self.running and table_history.mark(lake, table) != mark:
                return table
        return None


def observed_commits(lake: Lake, tables: Iterable[str], run: IngestRun) -> dict[str, int]:
    """Return the last checkpoint of a stream that the retained snapshots of each table show."""
    newest = {}
    for table in tables:
        commits = list(_commits(lake, table, snapshot_ids(lake, table), run))
        if commits:
            newest[table] = commits[-1]
    return newest


def _seen(lake: Lake, tables: Iterable[str]) -> dict[str, tuple[int, str]]:
    return {table: (_newest(lake, table), table_history.mark(lake, table)) for table in tables}


def _newest(lake: Lake, table: str) -> int:
    return max(snapshot_ids(lake, table), default=0)


def _commits(lake: Lake, table: str, ids: Iterable[int], run: IngestRun) -> Iterable[int]:
    folder = f"{lake.path(table)}/snapshot"
    snapshots = (read_snapshot_file(lake, folder, number) for number in ids)
    return (s.commit_identifier for s in snapshots if s is not None and run.made(s.commit_user))
