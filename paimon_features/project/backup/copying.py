"""Copy a project to a folder, and back to another place.

::

    DEST/backup.json       written last: what is in the backup; without it, it is incomplete
    DEST/warehouse/        the cut, and the files that its snapshots and checkpoints refer to
    DEST/state/            the newest checkpoint of each job
    DEST/project/          the configuration, the definitions file and the folder ``fitted``
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from paimon_features.core.configuration.project_config import FILE_NAME, read_config
from paimon_features.core.documents.typed_json import typed
from paimon_features.core.errors import (
    ConfigurationError,
    DamagedFileError,
    SnapshotExpiredError,
    TableError,
    UnknownNameError,
)
from paimon_features.core.process.callbacks import OnMessage, OnPhase, ignore_message, ignore_phase
from paimon_features.core.times.clock import now_ms
from paimon_features.lake import Lake
from paimon_features.lake.metadata.consumers import (
    delete_consumer,
    earliest_snapshot_id,
    register_consumer,
)
from paimon_features.lake.storage.json_files import read_json, write_json
from paimon_features.lake.storage.write_errors import write_errors
from paimon_features.lake.table_folders import SIDE_FOLDER
from paimon_features.project import Project
from paimon_features.project.backup.cut import HOLD, Cut, take_cut
from paimon_features.tiles.jobs.jobs import release
from paimon_features.transformers.fitted_version import FOLDER as FITTED

FORMAT = 1
DESCRIPTION = "backup.json"
_OF_THE_CUT = ("schema", "tag", "consumer", SIDE_FOLDER, "snapshot")
_ATTEMPTS = 10
_TABLE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class Backup:
    """What a backup contains: the newest snapshot of each table (None: no commit), at ``cut_ms``.

    ``files`` and ``bytes`` count all copied files.
    """

    project: str
    database: str
    cut_ms: int
    tables: dict[str, int | None]
    files: int
    bytes: int


def back_up(
    project: Project,
    target: Path,
    on_message: OnMessage = ignore_message,
    on_phase: OnPhase = ignore_phase,
) -> Backup:
    """Copy a project, whose jobs and writers may run, into a new folder.

    Snapshots are not expired meanwhile.

    Raises
    ------
    ConfigurationError
        If the warehouse is not a folder or has a REST catalog, checkpoints are on S3, or
        ``target`` exists and is not empty.
    TableError
        If there is no moment without a commit, or a table is dropped meanwhile.
    """
    lake, config = project.lake, project.config
    if lake.storage.is_remote:
        raise ConfigurationError(
            f"a backup requires a local warehouse, but {lake.warehouse!r} is remote: use the "
            "object store's own versions or replication"
        )
    if lake.rest is not None:
        raise ConfigurationError(
            f"a backup is a copy of files, and the tables belong to the REST catalog "
            f"{lake.rest.uri}: use the backups of its server"
        )
    if config.flink.checkpoints is not None:
        raise ConfigurationError(
            f"a backup requires checkpoints in the state folder, but [flink] checkpoints is "
            f"{config.flink.checkpoints!r}: use the object store's own versions or replication"
        )
    _check_empty(target)
    target.mkdir(parents=True, exist_ok=True, mode=0o700)
    _copy_project(config.root, config.definitions, target / "project")
    with _held(lake):
        cut_ms = now_ms()
        cut = take_cut(lake, config.state_dir)
        on_message(f"the cut: {len(cut.snapshots)} tables, {len(cut.files):,} small files")
        _write(target / "warehouse", cut.files)
        _write(target / "state", cut.checkpoints)
        copier = _Copier(on_phase, sum(_size(Path(lake.path(table))) for table in cut.snapshots))
        for table, numbers in cut.snapshots.items():
            copier.phase = f"copying {table}"
            _copy_table(lake, table, numbers, target / "warehouse", copier)
            on_message(f"{table}: copied")
        _check_tags(lake, cut)
    sizes = [path.stat().st_size for path in target.rglob("*") if path.is_file()]
    backup = Backup(
        project.name,
        lake.database,
        cut_ms,
        {table: max(numbers, default=None) for table, numbers in cut.snapshots.items()},
        len(sizes),
        sum(sizes),
    )
    write_json(target / DESCRIPTION, {"format": FORMAT, **asdict(backup)})
    return backup


def restore(
    source: Path,
    target: Path,
    on_message: OnMessage = ignore_message,
    on_phase: OnPhase = ignore_phase,
    *,
    may_write_outside: bool = False,
) -> Backup:
    """Create a project folder, and its warehouse, from a backup.

    Leases are released and jobs recorded as lost: those of the original have nothing to do with
    the copy. They resume from their checkpoints by ``submit``. The online store is not touched.
    ``may_write_outside`` allows a warehouse and a state folder outside of ``target``.

    Raises
    ------
    ConfigurationError
        If the backup is incomplete or of a later version, contains a symbolic link, or names a
        folder outside of the project; or a folder to write is not empty.
    DamagedFileError
        If files of the backup are missing or have another size.
    StorageWriteError
        If the file system refuses the copy.
    """
    backup = describe(source)
    check_content(source, backup)
    # a configuration has absolute paths; those here are compared with them
    source, target = source.resolve(), target.resolve()
    _check_empty(target)
    config = read_config(source / "project")
    warehouse = _place("warehouse", config.warehouse, source, target, may_write_outside)
    state = _place("state", config.state_dir, source, target, may_write_outside)
    copier = _Copier(on_phase, _size(source / "warehouse"))
    with write_errors(f"restoring {source}"):
        shutil.copytree(source / "project", target, dirs_exist_ok=True)
        shutil.copytree(source / "warehouse", warehouse, dirs_exist_ok=True, copy_function=copier)
        if (source / "state").is_dir():
            shutil.copytree(source / "state", state, dirs_exist_ok=True)
    copied = sum(
        path.is_file() for folder in (target, warehouse, state) for path in folder.rglob("*")
    )
    on_message(f"{copied:,} files copied")
    lake = Project.open(target).lake
    for table in backup.tables:
        ended = release(lake, table)
        if ended is not None:
            on_message(f"{table}: {ended.holder} of the original does not own the copy")
    return backup


def describe(source: Path) -> Backup:
    """Return what a backup contains.

    Raises
    ------
    ConfigurationError
        If there is none, it is incomplete, or of a later version.
    DamagedFileError
        If its description is not what was written.
    """
    document = read_json(source / DESCRIPTION)
    if document is None:
        raise ConfigurationError(
            f"{source} has no {DESCRIPTION}: it is not a backup, or the backup did not end"
        )
    if not isinstance(document, dict) or document.pop("format", None) != FORMAT:
        raise ConfigurationError(
            f"{source / DESCRIPTION} is not of format {FORMAT}: a later version wrote it; restore "
            "it with that version"
        )
    try:
        return typed(Backup, document)
    except ValueError as error:
        raise DamagedFileError(
            f"{source / DESCRIPTION} is damaged ({error}); use another backup"
        ) from error


def check_content(source: Path, made: Backup) -> None:
    """Check that a backup contains the files that were written, and nothing but files.

    Raises
    ------
    ConfigurationError
        For a symbolic link, a device or a pipe: what it leads to would be copied.
    DamagedFileError
        For another number of files, or of bytes.
    """
    files = size = 0
    for folder, folders, names in os.walk(source):
        for name in (*folders, *names):
            path = Path(folder, name)
            status = path.lstat()
            if stat.S_ISREG(status.st_mode):
                if path != source / DESCRIPTION:
                    files, size = files + 1, size + status.st_size
            elif not stat.S_ISDIR(status.st_mode):
                raise ConfigurationError(
                    f"{path} is neither a file nor a folder; a backup has no symbolic links, "
                    "which could lead out of it. Restore from the folder that "
                    "'paimon-features backup' wrote"
                )
    for table, newest in made.tables.items():
        if not _TABLE.fullmatch(table) or not _TABLE.fullmatch(made.database):
            raise DamagedFileError(f"{source / DESCRIPTION}: {table!r} is not a table name")
        snapshots = source / "warehouse" / f"{made.database}.db" / table / "snapshot"
        if newest is not None and not (snapshots / f"snapshot-{newest}").is_file():
            raise TableError(f"{source}: snapshot {newest} of table {table!r} is missing")
    if (files, size) != (made.files, made.bytes):
        raise DamagedFileError(
            f"{source} has {files:,} files with {size:,} bytes; {made.files:,} with "
            f"{made.bytes:,} were written. Use another backup"
        )


@contextmanager
def _held(lake: Lake) -> Iterator[None]:
    """Retain all snapshots of all tables inside the block."""
    held = []
    try:
        for table in lake.list():
            for _ in range(_ATTEMPTS):
                try:
                    earliest = earliest_snapshot_id(lake, table)
                    register_consumer(lake, table, HOLD, earliest or 1)
                    held.append(table)
                    break
                except (SnapshotExpiredError, FileNotFoundError):
                    continue  # it expired, or the table was dropped, just now
                except UnknownNameError:
                    break
        yield
    finally:
        for table in held:
            with suppress(UnknownNameError):  # dropped meanwhile
                delete_consumer(lake, table, HOLD)


class _Copier:
    """Copies files and reports the bytes; ``total`` may change while it works."""

    def __init__(self, on_phase: OnPhase, total: int) -> None:
        self.on_phase, self.total, self.done = on_phase, total, 0
        self.phase = "copying"

    def __call__(self, source: str | Path, target: str | Path) -> str | Path:
        copied = shutil.copyfile(source, target)
        self.done += os.path.getsize(target)
        self.on_phase(self.phase, self.done, max(self.done, self.total))
        return copied


def _size(folder: Path) -> int:
    """Return the bytes of the files of a folder, in which files come and go."""
    size = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            size += path.stat().st_size if path.is_file() else 0
    return size


def _copy_table(
    lake: Lake, table: str, numbers: tuple[int, ...], warehouse: Path, copier: _Copier
) -> None:
    """Copy the files of a table that are written once.

    Also those of no snapshot yet: the checkpoint of a job may refer to them. One that vanishes is
    of none, because the snapshots are retained.
    """
    source = Path(lake.path(table))
    target = warehouse / f"{lake.database}.db" / table
    for path in sorted(source.rglob("*")):
        relative = path.relative_to(source)
        if relative.parts[0] in _OF_THE_CUT or path.name.startswith("."):
            continue
        if path.is_file():
            (target / relative).parent.mkdir(parents=True, exist_ok=True)
            try:
                copier(path, target / relative)
            except FileNotFoundError:
                (target / relative).unlink(missing_ok=True)
    snapshots = target / "snapshot"
    snapshots.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        try:
            shutil.copyfile(
                source / "snapshot" / f"snapshot-{number}", snapshots / f"snapshot-{number}"
            )
        except FileNotFoundError as error:
            raise TableError(
                f"table {table!r} was dropped or rolled back during the backup; repeat it into "
                "another folder"
            ) from error
    if numbers:
        (snapshots / "EARLIEST").write_text(str(numbers[0]))
        (snapshots / "LATEST").write_text(str(numbers[-1]))


def _check_tags(lake: Lake, cut: Cut) -> None:
    """Raise if a tag was deleted while its files were copied."""
    gone = [
        path
        for path in cut.files
        if "/tag/" in path and not (Path(lake.warehouse) / path).is_file()
    ]
    if gone:
        raise TableError(
            f"the tag {gone[0]} was deleted during the backup, so its files may be missing; repeat "
            "the backup into another folder"
        )


def _copy_project(root: Path, definitions: Path, target: Path) -> None:
    target.mkdir()
    shutil.copyfile(root / FILE_NAME, target / FILE_NAME)
    folder = definitions.parent
    if not folder.is_relative_to(root):
        return  # it stays where it is
    copy = target / folder.relative_to(root)
    copy.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.py"):
        shutil.copyfile(path, copy / path.name)
    if (folder / FITTED).is_dir():
        shutil.copytree(folder / FITTED, copy / FITTED)


def _place(what: str, path: Path | str, source: Path, target: Path, may_be_outside: bool) -> Path:
    """Return where a folder of the project is restored: an empty one.

    Outside of ``target`` if allowed.
    """
    root = (source / "project").resolve()
    path = Path(path).resolve()
    if path.is_relative_to(source):  # a relative path, which may lead out of the project
        path = (target / os.path.relpath(path, root)).resolve()
    if not path.is_relative_to(target) and not may_be_outside:
        raise ConfigurationError(
            f"{source}: its {what} would be written to {path}, outside of {target}. If you know "
            "the backup, and want that, pass --outside"
        )
    _check_empty(path)
    return path


def _write(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _check_empty(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(f"{folder} is not an empty folder; choose another one")
