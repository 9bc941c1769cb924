"""Spool files into tables, each of them once: request logs and logs of predictions.

Before a commit, a ledger next to the table names its files and the commit's identifier; the table
itself shows whether the commit exists. So after any failure the next pass knows what to do::

    ledger      commit      what the next pass does
    none        -           nothing was started
    files, n    n missing   clears the ledger, reads the files again
    files, n    n exists    moves the files to committed/, clears the ledger

A ledger that does not exist (it was lost, or there was no pass yet) is replaced by the table, whose
rows name their files.

Committed files stay in ``committed/`` for a while, to detect a file that arrives again, for
instance from a server's host that was copied twice.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.errors import TableError
from paimon_features.core.process.callbacks import OnMessage, ignore_message
from paimon_features.core.times.clock import now_ms
from paimon_features.core.windows import DAY_MS
from paimon_features.lake import Lake, append_arrow, read_arrow
from paimon_features.lake.ownership.commit_lock import commit_lock
from paimon_features.lake.ownership.lease import acquire
from paimon_features.lake.specs import (
    PREDICTIONS_PREFIX,
    SERVED_DAY,
    SPOOL_FILE,
    TableSpec,
    predictions_spec,
    served_spec,
)
from paimon_features.lake.storage.json_files import read_json, write_json
from paimon_features.lake.writing.table_writer import committed_identifiers
from paimon_features.serving.request_log.log_rows import log_schema
from paimon_features.serving.request_log.prediction_log import PREDICTIONS
from paimon_features.serving.request_log.prediction_rows import prediction_schema
from paimon_features.serving.request_log.spool import COMPLETE, read_spool, recover

USER = "request-log"
COMMITTED, REJECTED = "committed", "rejected"
COMMIT_BYTES = 64 << 20
"""Files of about this many bytes are committed together."""


@dataclass(frozen=True)
class SpooledLog:
    """A kind of spool files, and the table that they are committed to.

    ``expected`` are columns that have this value in each row: of another project, or another
    model, a file is rejected.
    """

    table: TableSpec
    schema: pa.Schema
    expected: Mapping[str, str]


def request_log_of(project: str) -> SpooledLog:
    """Return the request log of a project, in the table ``served_<project>``."""
    return SpooledLog(served_spec(served_table(project)), log_schema(), {"project": project})


def prediction_log_of(project: str, model: str) -> SpooledLog:
    """Return the predictions of a model, in the table ``predictions_<model>``."""
    return SpooledLog(
        predictions_spec(PREDICTIONS_PREFIX + model),
        prediction_schema(),
        {"project": project, "model": model},
    )


def prediction_folders(folders: Sequence[Path]) -> dict[str, list[Path]]:
    """Return the folders with spool files of predictions below some folders, by model."""
    by_model: dict[str, list[Path]] = {}
    for folder in folders:
        below = folder / PREDICTIONS
        for path in sorted(below.iterdir()) if below.is_dir() else ():
            if path.is_dir():
                by_model.setdefault(path.name, []).append(path)
    return by_model


@dataclass
class CommitStats:
    """Counts of one or more passes.

    ``rows`` of ``files`` files are in the table. ``recovered`` files were left open by workers
    that died, ``torn`` had an end that could not be read (``torn_bytes`` altogether).
    ``rejected`` files could not be read at all, or are another project's, and are in
    ``rejected/``; ``repeated`` ones were committed before and are not committed twice. ``removed``
    are committed files that were kept for long enough.
    """

    files: int = 0
    rows: int = 0
    commits: int = 0
    recovered: int = 0
    torn: int = 0
    torn_bytes: int = 0
    rejected: int = 0
    repeated: int = 0
    removed: int = 0

    def add(self, other: CommitStats) -> None:
        """Add the counts of another pass."""
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class SpoolCommitter:
    """Commits the files waiting in some folders; owns the table during each pass, not in between.

    They are those of the request log by default, or of ``log``. ``keep_s`` is how long a committed
    file stays. ``on_message`` receives a line for everything that an operator has to know.

    Raises
    ------
    TableError
        If the table exists with another schema.
    """

    def __init__(
        self,
        lake: Lake,
        project: str,
        folders: Sequence[Path],
        *,
        log: SpooledLog | None = None,
        keep_s: float = 86_400.0,
        on_message: OnMessage = ignore_message,
    ) -> None:
        self.lake, self.log = lake, log or request_log_of(project)
        # the ledger has to mean the same files wherever the next pass is started
        self.folders = [folder.resolve() for folder in folders]
        self.table = self.log.table.name
        self.keep_s = keep_s
        self._tell = on_message
        self._ledger = lake.side_folder / "served" / f"{lake.database}.{self.table}.json"
        lake.create(self.log.table)

    def run_once(self) -> CommitStats:
        """Commit everything that is complete.

        Raises
        ------
        OwnershipError
            If another process owns the table, because it commits or maintains it.
        """
        with acquire(self.lake, self.table, purpose="commit request logs"):
            return self._run()

    def _run(self) -> CommitStats:
        done = CommitStats()
        self._finish_what_was_begun()
        for folder in self.folders:
            if not folder.is_dir():
                continue
            done.recovered += len(recover(folder))
            for files in _chunks(self._new_files(folder, done)):
                self._commit(files, done)
            self._remove_old(folder, done)
        return done

    def _record(self, begun: dict[str, Any]) -> None:
        """Write the ledger, unless another process owns the table by now: it is the owner's."""
        with commit_lock(self.lake, self.table, f"writing the ledger of {self.table!r}"):
            write_json(self._ledger, begun)

    def _finish_what_was_begun(self) -> None:
        begun = read_json(self._ledger)
        if begun is None:
            waiting = [path for folder in self.folders for path in folder.glob(f"*{COMPLETE}")]
            _put_away(self._in_table(waiting))
            self._record({})
        if not begun:
            return
        newest = committed_identifiers(self.lake, self.table, USER) or 0
        if newest >= begun["identifier"]:
            _put_away([Path(file) for file in begun["files"]])
        self._record({})

    def _in_table(self, paths: Sequence[Path]) -> list[Path]:
        """Return the files among ``paths`` that were committed, as the rows of the table show."""
        if not paths:
            return []
        names = [path.name for path in paths]
        rows = read_arrow(self.lake, self.table, columns=[SPOOL_FILE], where={SPOOL_FILE: names})
        committed = set(pc.unique(rows.column(SPOOL_FILE)).to_pylist())
        return [path for path in paths if path.name in committed]

    def _new_files(self, folder: Path, done: CommitStats) -> list[Path]:
        files = []
        for path in sorted(folder.glob(f"*{COMPLETE}")):
            # it may have been copied into another of the folders
            if any((log_folder / COMMITTED / path.name).exists() for log_folder in self.folders):
                self._repeated(path, done)
            else:
                files.append(path)
        return files

    def _repeated(self, path: Path, done: CommitStats) -> None:
        self._tell(f"{path} was committed before; it is not committed twice")
        path.unlink()
        done.repeated += 1

    def _without_repeated(
        self, read: Sequence[tuple[Path, pa.Table]], done: CommitStats
    ) -> list[tuple[Path, pa.Table]]:
        """Leave out what was committed so long ago that ``committed/`` may not show it any more."""
        oldest = now_ms() - int(1_000 * self.keep_s)
        old = [path for path, rows in read if _newest_ms(rows) <= oldest]
        repeated = set(self._in_table(old))
        for path in repeated:
            self._repeated(path, done)
        return [(path, rows) for path, rows in read if path not in repeated]

    def _commit(self, files: Sequence[Path], done: CommitStats) -> None:
        stats = CommitStats(commits=1)
        loaded = []
        for path in files:
            try:
                rows = self._read(path, stats)
            except TableError as error:
                self._tell(f"rejected: {error}")
                _move(path, path.parent / REJECTED)
                done.rejected += 1
                continue
            loaded.append((path, rows))
        loaded = self._without_repeated(loaded, done)
        if not loaded:
            return
        good, tables = [path for path, _ in loaded], [rows for _, rows in loaded]
        stats.files, stats.rows = len(good), sum(rows.num_rows for rows in tables)
        identifier = (committed_identifiers(self.lake, self.table, USER) or 0) + 1
        self._record({"identifier": identifier, "files": list(map(str, good))})
        append_arrow(
            self.lake,
            self.table,
            pa.concat_tables(tables),
            commit_user=USER,
            commit_identifier=identifier,
        )
        _put_away(good)
        self._record({})
        done.add(stats)

    def _read(self, path: Path, own: CommitStats) -> pa.Table:
        spooled = read_spool(path, self.log.schema)
        rows = spooled.rows
        for column, expected in self.log.expected.items():
            others = pc.unique(rows.column(column)).to_pylist()
            if any(other != expected for other in others):
                raise TableError(f"{path} is of the {column} {', '.join(others)}, not {expected}")
        if spooled.torn_bytes:
            self._tell(
                f"{path}: the last {spooled.torn_bytes} bytes are torn, its worker died while "
                f"writing them; {rows.num_rows} rows before them are kept"
            )
            own.torn += 1
            own.torn_bytes += spooled.torn_bytes
        # integer division rounds towards zero; no request was served before 1970
        days = pc.divide(rows.column("served_at_ms"), DAY_MS).cast(pa.int32())
        rows = rows.append_column(SERVED_DAY, days)
        return rows.append_column(SPOOL_FILE, pa.array([path.name] * rows.num_rows, pa.string()))

    def _remove_old(self, folder: Path, done: CommitStats) -> None:
        kept = folder / COMMITTED
        for path in kept.glob(f"*{COMPLETE}") if kept.is_dir() else ():
            if now_ms() / 1000 - path.stat().st_mtime >= self.keep_s:
                path.unlink()
                done.removed += 1


def _newest_ms(rows: pa.Table) -> int:
    """Return the newest time in a file, 0 if it has no rows."""
    return pc.max(rows.column("served_at_ms")).as_py() or 0


def served_table(project: str) -> str:
    """Return the table with the request log of a project."""
    return f"served_{project}"


def waiting(folders: Sequence[Path]) -> dict[str, Any]:
    """Return the waiting files of the folders: complete ones, those being written, bytes."""
    counts = {"complete": 0, "open": 0, "bytes": 0}
    for folder in folders:
        for path in folder.glob("*"):
            if path.is_file():
                counts["complete" if path.suffix == COMPLETE else "open"] += 1
                counts["bytes"] += path.stat().st_size
    return counts


def _chunks(files: Sequence[Path]) -> Iterator[list[Path]]:
    chunk: list[Path] = []
    size = 0
    for path in files:
        chunk.append(path)
        size += path.stat().st_size
        if size >= COMMIT_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _put_away(files: Sequence[Path]) -> None:
    """Move files to ``committed/``; a repeat is harmless."""
    for path in files:
        if path.exists():
            _move(path, path.parent / COMMITTED)


def _move(path: Path, folder: Path) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    os.utime(path)  # kept from now on
    os.rename(path, folder / path.name)
