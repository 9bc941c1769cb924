"""Where a stream may start so that no row is read twice and none is left out.

The evidence is the stream's record in the ledger of its source (see ``stream_records``), which
neither expires nor lies in a folder that may be a copy. Snapshots and the checkpoints' folder are
consulted only about a stream of an earlier release, which has no record.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paimon_features.core.errors import JobError
from paimon_features.flink.checkpoints import METADATA, Branch, Checkpoint, find_checkpoints
from paimon_features.ingest.ledger import IngestLedger
from paimon_features.ingest.runs import IngestRun
from paimon_features.ingest.stream_records import NOTHING, StreamRecord, observed_commits
from paimon_features.lake import Lake
from paimon_features.lake.metadata import table_history
from paimon_features.lake.storage.file_path import FilePath, modified_ns
from paimon_features.lake.storage.json_files import read_json

TABLES_FILE = "tables.json"
"""In a folder of checkpoints of an earlier release: when their tables were created."""

Table = tuple[Lake, str]
_OVER = (
    "--restart (with --kafka) begins at --start instead; else define a source under another name"
)


def resume_point(
    ledger: IngestLedger, run: IngestRun, folder: FilePath, tables: Sequence[Table]
) -> Checkpoint | None:
    """Return the checkpoint from which a stream resumes, None for a first run; the caller owns the
    tables.

    Raises
    ------
    JobError
        If the tables contain, or may contain, a commit that no checkpoint in ``folder`` covers; or
        if one of them is not the table that the checkpoints belong to.
    """
    record = ledger.stream(run.id)
    checkpoints = find_checkpoints(folder)
    if record is None:
        return _without_record(ledger, run, folder, tables, checkpoints)
    branch = Branch(record.branch)
    newest = max((c for c in checkpoints if branch.contains(c)), key=lambda c: c.id, default=None)
    if newest is None and record.committed == NOTHING and not record.unknown:
        return None
    check_same_tables(tables, record.reads, folder)
    replaced = record.replaced(ledger.lake)
    if replaced is not None:
        raise JobError(
            f"table {replaced!r} was rolled back since this stream wrote to it: to resume would "
            f"leave out the rows that were removed. {_OVER}"
        )
    if record.unknown:
        raise JobError(
            f"the snapshots of {ledger.source.table!r} that show which checkpoint of this stream "
            f"is its newest have expired: rows could be duplicated, or left out. {_OVER}"
        )
    if newest is None or record.committed > newest.id:
        raise _duplicates(ledger.source.table, record.committed, newest, folder)
    return newest


def begin(
    ledger: IngestLedger,
    run: IngestRun,
    tables: Sequence[Table],
    job_id: str,
    start: Checkpoint | None,
    topic_id: str | None = None,
    *,
    restart: bool = False,
) -> None:
    """Record a job of a stream that is about to start from ``start``; the caller owns the tables.

    With ``restart`` what earlier jobs have committed does not count any more.
    """
    before = None if restart else ledger.stream(run.id)
    record, branch = before or StreamRecord(run.id), Branch(((job_id, None),))
    if start is not None:
        # a stream of an earlier release has no record: its branch begins with the job before
        ancestors = ((start.job_id, None),) if before is None else before.branch
        branch = Branch(ancestors).then(job_id, start)
        # the job commits what its checkpoint contains, if that was not committed before
        record = replace(record, committed=max(record.committed, start.id))
    ledger.record_stream(
        record.begun(
            ledger.lake,
            (ledger.source.table, ledger.source.rejected_table),
            branch=branch.jobs,
            reads=creation_times(tables),
            topic_id=topic_id or record.topic_id,
        )
    )


def _without_record(
    ledger: IngestLedger,
    run: IngestRun,
    folder: FilePath,
    tables: Sequence[Table],
    checkpoints: Sequence[Checkpoint],
) -> Checkpoint | None:
    # numbers start again after --restart, so the one that was written last counts; of two in one
    # tick of the file system's clock, the one with the greater number
    newest = max(checkpoints, key=lambda c: (modified_ns(c.path / METADATA), c.id), default=None)
    table_names = (ledger.source.table, ledger.source.rejected_table)
    for table, committed in observed_commits(ledger.lake, table_names, run).items():
        if newest is None or committed > newest.id:
            raise _duplicates(table, committed, newest, folder)
    if newest is None:
        if ledger.streams_lost:
            raise JobError(
                f"the record of what this stream has committed to {ledger.source.table!r} was "
                f"lost, and {folder} has no checkpoint: rows could be duplicated. {_OVER}"
            )
        return None
    recorded_tables = _read_json(folder / TABLES_FILE)
    if recorded_tables is None:
        raise JobError(
            f"nothing records for which tables the checkpoints in {folder} were written: to "
            "resume from them could leave out rows. Delete this folder to start from the beginning"
        )
    check_same_tables(tables, recorded_tables, folder)
    return newest


def _duplicates(
    table: str, committed: int, newest: Checkpoint | None, folder: FilePath
) -> JobError:
    newest_id = "none" if newest is None else newest.id
    return JobError(
        f"table {table!r} contains checkpoint {committed} of this stream, and in {folder} the "
        f"newest is {newest_id}: rows since then would be duplicated. Restore the checkpoint, "
        "or accept that by --restart (with --kafka), or define a source under another name"
    )


def check_same_tables(tables: Iterable[Table], known: Mapping[str, int], folder: FilePath) -> None:
    """Raise JobError if one was created again since the checkpoints in ``folder`` were written.

    Their positions are those of the earlier table, or of what was written into it. ``known`` are
    the creation times at that moment.
    """
    for path, created_ms in creation_times(tables).items():
        if known.get(path, created_ms) != created_ms:
            raise JobError(
                f"table {path} was dropped and created again since the checkpoints in {folder} "
                "were written: to resume from them would leave out the rows before. Delete this "
                "folder to start from the beginning; --restart (with --kafka) continues from the "
                "group's offsets"
            )


def creation_times(tables: Iterable[Table]) -> dict[str, int]:
    """Return when tables were created (UTC ms), by their paths."""
    return {lake.path(name): table_history.created_ms(lake, name) for lake, name in tables}


def _read_json(path: FilePath) -> Any | None:
    if isinstance(path, Path):
        return read_json(path)
    try:
        return json.loads(path.storage.read_text(path.address))
    except FileNotFoundError:
        return None
