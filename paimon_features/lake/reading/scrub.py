"""Read a table completely and report every file that is not what was written.

All retained snapshots and tags: their files, schemas, manifest lists, manifests, the counts that
they must agree on, and every data file: size, footer, pages (CRC32), rows, the order and range
of its keys, and that files of one level do not overlap. Linear in the manifests' entries and the
files' bytes. Nothing is changed, no lock is held; a file that expires meanwhile is no damage, nor
is a table that is dropped.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.documents.checksummed_json import read_document, stored_document
from paimon_features.core.errors import (
    DamagedFileError,
    PaimonFeaturesError,
    SnapshotExpiredError,
    StoreUnreachableError,
    UnknownNameError,
)
from paimon_features.core.process.callbacks import OnProgress, ignore_progress
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata import table_history
from paimon_features.lake.metadata.manifests import raw_snapshot
from paimon_features.lake.metadata.snapshots import read_snapshot_file, snapshot_ids, tagged
from paimon_features.lake.metadata_damage import (
    check_entries,
    check_manifest,
    check_rows,
    metadata_damage,
)
from paimon_features.lake.reading.snapshot_content import KEY_PREFIX
from paimon_features.lake.storage import VerifiedParquetFile, damage_of, damaged
from paimon_features.lake.storage.object_path import SidePath
from paimon_features.lake.table_folders import SIDE_FOLDER, schema_ids

_PLAIN = (bool, int, str, bytes)
"""Values of keys that pypaimon and Arrow return as the same type."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A file that is not what was written; ``snapshots`` and ``tags`` contain it."""

    table: str
    path: str
    problem: str
    snapshots: tuple[int, ...] = ()
    tags: tuple[str, ...] = ()


@dataclass
class ScrubReport:
    """What was read of a table, and what is damaged; ``dropped``: it was, or created again."""

    table: str
    snapshots: int = 0
    manifests: int = 0
    files: int = 0
    skipped: int = 0
    bytes: int = 0
    pages: int = 0
    pages_without_crc: int = 0
    damages: list[Damage] = field(default_factory=list)
    dropped: bool = False


@dataclass
class _DataFile:
    entry: Any
    path: str
    first: int
    last: int | None = None  # the last snapshot that contains it; None: the newest
    tags: tuple[str, ...] = ()


def scrub_table(
    lake: Lake,
    name: str,
    *,
    since_ms: int | None = None,
    share: float = 1.0,
    dice: random.Random | None = None,
    progress: OnProgress = ignore_progress,
) -> ScrubReport:
    """Read a table; ``since_ms`` and ``share`` bound which data files are read.

    Metadata is always read completely. With ``since_ms`` only data files of snapshots that were
    committed at or after it are read; ``share`` is the fraction of them to read, chosen at random.
    """
    return _Scrub(lake, name, since_ms, share, dice or random.Random(), progress).run()


def scrub_side_folder(lake: Lake) -> list[Damage]:
    """Return the JSON records next to the tables, and their marks, that are not what was
    written."""
    damages = []
    folders = [lake.path(SIDE_FOLDER), *(f"{lake.path(t)}/{SIDE_FOLDER}" for t in lake.list())]
    marks = [
        f"{folder}/{name}"
        for folder in folders
        for name in lake.storage.names(folder)
        if name.endswith(".json")  # others are being written, or their writer was killed
    ]
    paths: Iterable[SidePath] = lake.side_folder.rglob("*.json")
    checks = [partial(read_document, path) for path in sorted(paths, key=str)]
    checks += [partial(stored_document, lake.storage, path) for path in marks]
    for check in checks:
        try:
            check()
        except StoreUnreachableError:
            raise
        except FileNotFoundError:  # deleted since; ``lost_records`` finds what must be there
            continue
        except (OSError, DamagedFileError) as error:
            damages.append(Damage("", str(check.args[-1]), str(error)))
    return damages


class _Scrub:
    def __init__(
        self,
        lake: Lake,
        name: str,
        since_ms: int | None,
        share: float,
        dice: random.Random,
        progress: OnProgress,
    ) -> None:
        self.lake, self.name, self.since_ms, self.share = lake, name, since_ms, share
        self.dice, self.progress = dice, progress
        self.report = ScrubReport(name)
        self.entries: dict[str, list[Any]] = {}
        self.files: dict[tuple[Any, ...], _DataFile] = {}
        self.times: dict[int, int] = {}

    def run(self) -> ScrubReport:
        created_ms = self._created_ms()
        self._schemas()
        with self._damage(f"{self.lake.path(self.name)}/schema"):
            self.table = self.lake.table(self.name)
            self.keys = [f.name for f in self.table.trimmed_primary_keys_fields]
            self._snapshots()
            self._tags()
            self._levels()
            self._data_files()
        if self.report.damages:
            if not self.lake.exists(self.name) or self._created_ms() != created_ms:
                return ScrubReport(self.name, dropped=True)
            self.report.damages = list(self._unexpired())
        return self.report

    def _created_ms(self) -> int | None:
        with suppress(UnknownNameError, DamagedFileError):  # its first schema is lost, or damaged
            return table_history.created_ms(self.lake, self.name)
        return None

    def _unexpired(self) -> Iterator[Damage]:
        """Yield the damages without those of snapshots that have all expired meanwhile."""
        try:
            retained = self._retained()
        except PaimonFeaturesError:  # a damaged tag
            yield from self.report.damages
            return
        for damage in self.report.damages:
            if damage.tags or not damage.snapshots or not retained.isdisjoint(damage.snapshots):
                yield damage

    # -- metadata ------------------------------------------------------------------------------

    def _schemas(self) -> None:
        for number in schema_ids(self.lake, self.name):
            path = f"{self.lake.path(self.name)}/schema/schema-{number}"
            with self._damage(path), metadata_damage(path, f"table {self.name!r}"):
                json.loads(self.lake.storage.read_text(path))

    def _snapshots(self) -> None:
        folder = f"{self.lake.path(self.name)}/snapshot"
        previous = None
        for number in snapshot_ids(self.lake, self.name):
            path = f"{folder}/snapshot-{number}"
            with self._damage(path, number), self._expiry(number):
                snapshot = read_snapshot_file(self.lake, folder, number)
                if snapshot is None:
                    continue
                self.report.snapshots += 1
                self.times[number] = snapshot.time_ms
                raw = raw_snapshot(self.lake, self.name, number)
                delta = list(self._list(raw.delta_manifest_list, number))
                check_rows(self.name, raw, delta, delta=True)
                if previous is None or raw.total_record_count is None:
                    self._all(raw, number)
                else:
                    self._apply(delta, number)
                    total = previous + raw.delta_record_count
                    if total != raw.total_record_count:
                        raise damaged(path, f"it counts {raw.total_record_count} rows, not {total}")
                    self._read_list(raw.base_manifest_list, number)
                previous = raw.total_record_count
                continue
            previous = None

    def _tags(self) -> None:
        folder = f"{self.lake.path(self.name)}/tag"
        with self._damage(folder):
            for tag, snapshot in tagged(self.lake, self.name).items():
                with self._damage(f"{folder}/tag-{tag}", snapshot.id):
                    self.times.setdefault(snapshot.id, snapshot.time_ms)
                    raw = raw_snapshot(self.lake, self.name, snapshot.id)
                    self._all(raw, snapshot.id, tag)

    def _all(self, raw: Any, number: int, tag: str | None = None) -> None:
        """Add all files of a snapshot."""
        live: dict[tuple[Any, ...], Any] = {}
        for listed in (raw.base_manifest_list, raw.delta_manifest_list):
            for entry in self._list(listed, number):
                if entry.kind == 0:
                    live[_identity(entry)] = entry
                else:
                    live.pop(_identity(entry), None)
        check_rows(self.name, raw, live.values())
        for key, entry in live.items():
            file = self.files.setdefault(key, self._file(entry, number))
            if tag is not None:
                file.tags = (*file.tags, tag)

    def _apply(self, delta: list[Any], number: int) -> None:
        for entry in delta:
            key = _identity(entry)
            if entry.kind == 0:
                self.files[key] = self._file(entry, number)
            elif key in self.files:
                self.files[key].last = number - 1

    def _file(self, entry: Any, number: int) -> _DataFile:
        values = tuple(entry.partition.values)
        folder = self.table.path_factory().bucket_path(values, entry.bucket)
        path = entry.file.external_path or f"{folder}/{entry.file.file_name}"
        return _DataFile(entry, path, number)

    def _list(self, name: str, number: int) -> Iterator[Any]:
        """Yield the entries of the manifests of a list."""
        for manifest in self._read_list(name, number):
            yield from self.entries[manifest]

    def _read_list(self, name: str, number: int) -> list[str]:
        """Read the manifests of a list, each of them once, and return their names."""
        from pypaimon.manifest.manifest_list_manager import ManifestListManager

        folder = f"{self.lake.path(self.name)}/manifest"
        subject = f"table {self.name!r}"
        with metadata_damage(f"{folder}/{name}", subject):
            manifests = ManifestListManager(self.table).read(name)
        for manifest in manifests:
            if manifest.file_name not in self.entries:
                path = f"{folder}/{manifest.file_name}"
                self.entries[manifest.file_name] = []
                with self._damage(path, number), self._expiry(number):
                    self.entries[manifest.file_name] = self._manifest(path, manifest)
                    self.report.manifests += 1
        return [manifest.file_name for manifest in manifests]

    def _manifest(self, path: str, manifest: Any) -> list[Any]:
        from pypaimon.manifest.manifest_file_manager import ManifestFileManager

        with metadata_damage(path, f"table {self.name!r}"):
            entries = list(ManifestFileManager(self.table).read(manifest.file_name, None, False))
        check_entries(self.lake.path(self.name), entries)
        check_manifest(self.lake.storage, path, manifest, entries)
        return entries

    # -- data files ----------------------------------------------------------------------------

    def _levels(self) -> None:
        """Find files of a level above 0 that overlap; an older compaction's files are of other
        times."""
        newest = [f for f in self.files.values() if f.last is None and f.entry.file.level > 0]
        groups: dict[tuple[Any, ...], list[_DataFile]] = {}
        for file in newest if self.keys else ():
            group = (tuple(file.entry.partition.values), file.entry.bucket, file.entry.file.level)
            groups.setdefault(group, []).append(file)
        for files in groups.values():
            files.sort(key=lambda file: tuple(file.entry.file.min_key.values))
            for one, other in itertools.pairwise(files):
                with self._damage(other.path, file=other):
                    if tuple(one.entry.file.max_key.values) >= tuple(
                        other.entry.file.min_key.values
                    ):
                        raise damaged(other.path, f"its keys overlap those of {one.path}")

    def _data_files(self) -> None:
        wanted = [f for f in self.files.values() if self._is_wanted(f)]
        self.report.skipped = len(self.files) - len(wanted)
        for number, file in enumerate(wanted):
            self.progress(number, len(wanted))
            with self._damage(file.path, file=file), self._expiry(file.first, file):
                self._data_file(file)
        self.progress(len(wanted), len(wanted))

    def _is_wanted(self, file: _DataFile) -> bool:
        if self.since_ms is not None and self.times.get(file.first, 0) < self.since_ms:
            return False
        return self.share >= 1 or self.dice.random() < self.share

    def _data_file(self, file: _DataFile) -> None:
        meta, path = file.entry.file, file.path
        self.report.files += 1
        self.report.bytes += meta.file_size
        if not path.endswith(".parquet"):
            size = self.lake.storage.size(path)
            if size != meta.file_size:
                raise damaged(path, f"it has {size} bytes; its manifest says {meta.file_size}")
            return
        with self.lake.storage.open_parquet(path, meta.file_size) as parquet, damage_of(path):
            rows = parquet.metadata.num_rows
            if rows != meta.row_count:
                raise damaged(path, f"it has {rows} rows; its manifest says {meta.row_count}")
            assert isinstance(parquet, VerifiedParquetFile)
            counts = parquet.verify()
            self.report.pages += counts.pages
            self.report.pages_without_crc += counts.without_crc
            if not self.keys and counts.without_crc == counts.pages:
                # without checksums, at least what does not decode is found
                for _ in parquet.iter_batches(1 << 16):
                    pass
            if self.keys and rows:
                self._keys(parquet, file)

    def _keys(self, parquet: VerifiedParquetFile, file: _DataFile) -> None:
        file_columns = parquet.schema_arrow.names
        names = [k if KEY_PREFIX + k not in file_columns else KEY_PREFIX + k for k in self.keys]
        if not set(names) <= set(
            file_columns
        ):  # a renamed key: its order was verified when it was new
            return
        first = last = None
        for batch in parquet.iter_batches(1 << 17, columns=names):
            columns = [batch.column(name) for name in names]
            if not _ascending(columns):
                raise damaged(file.path, "its rows are not in the order of their keys")
            ends = [[column[place].as_py() for column in columns] for place in (0, -1)]
            if last is not None and last > ends[0]:
                raise damaged(file.path, "its rows are not in the order of their keys")
            first, last = first or ends[0], ends[1]
        meta = file.entry.file
        least, greatest = list(meta.min_key.values), list(meta.max_key.values)
        plain = all(isinstance(value, _PLAIN) for value in (*least, *greatest))
        if plain and (first != least or last != greatest):
            raise damaged(
                file.path,
                f"its keys are {first} to {last}; its manifest says {least} to {greatest}",
            )

    # -- reporting -----------------------------------------------------------------------------

    @contextmanager
    def _damage(
        self, path: str, number: int | None = None, file: _DataFile | None = None
    ) -> Iterator[None]:
        """Report an error as a damage of the file, and continue after it."""
        try:
            yield
        except SnapshotExpiredError:
            return
        except StoreUnreachableError:  # says nothing about the file
            raise
        except (PaimonFeaturesError, OSError) as error:
            missing = isinstance(error, FileNotFoundError)
            problem = f"a file does not exist: {error}" if missing else str(error)
            snapshots: tuple[int, ...] = () if number is None else (number,)
            tags: tuple[str, ...] = ()
            if file is not None:
                snapshots, tags = self._snapshots_of(file), file.tags
            self.report.damages.append(Damage(self.name, path, problem, snapshots, tags))

    @contextmanager
    def _expiry(self, number: int, file: _DataFile | None = None) -> Iterator[None]:
        """Ignore a missing file if its snapshots have expired meanwhile."""
        try:
            yield
        except FileNotFoundError as error:
            of_file = self._snapshots_of(file) if file is not None else (number,)
            if self._retained().isdisjoint(of_file) and not (file is not None and file.tags):
                raise SnapshotExpiredError(f"{error} has expired") from error
            raise

    def _retained(self) -> set[int]:
        tags = tagged(self.lake, self.name).values()
        return {*snapshot_ids(self.lake, self.name), *(tag.id for tag in tags)}

    def _snapshots_of(self, file: _DataFile) -> tuple[int, ...]:
        last = file.last
        return tuple(n for n in self.times if file.first <= n and (last is None or n <= last))


def _identity(entry: Any) -> tuple[Any, ...]:
    return (tuple(entry.partition.values), entry.bucket, entry.file.file_name, entry.file.level)


def _ascending(columns: list[pa.Array]) -> bool:
    """Return True if rows are in ascending order of several columns, without nulls."""
    count = len(columns[0])
    undecided = np.ones(max(0, count - 1), np.bool_)
    for column in columns:
        before, after = column.slice(0, count - 1), column.slice(1)
        if np.any(undecided & np.asarray(pc.less(after, before))):
            return False
        undecided &= np.asarray(pc.equal(after, before))
    return True
