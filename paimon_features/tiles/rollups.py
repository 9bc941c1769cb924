"""Rollups: a cache of folded tiles, keyed by the data files they were computed from.

A **unit** is a span of whole days in one bucket; its rollup is a file with one row per entity,
the fold of the entity's tiles in the span. Spans of one level form a span of the next::

    512 days  |======================================= ... ===|
     64 days  |===============|===============|======= ... ===|
      8 days  |=======|=======|=======|=======|======= ... ===|
      1 day   |-|-|-|-|-|-|-|-|-|-|-|-|-|-|-|-|-|-|-|- ... -|-|    below: the tiles themselves

A rollup's name contains a hash of the names of the unit's data files. Data files are immutable, so
a rollup never becomes wrong, and is found only by readers of exactly its files: at a snapshot with
late data, after a repair, a compaction or a rollback the unit has another name, and a missing
rollup is replaced by the next lower level. No invalidation is needed.

What a rollup must be is stored outside of it, in a JSON file of the same name: its size, its rows
and a digest of its footer. A rollup that does not match counts as missing. Its pages have checksums
of their own, which are verified when they are read.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from paimon_features.core.errors import ConfigurationError, DamagedFileError
from paimon_features.core.times.partition_days import PARTITION_DAYS
from paimon_features.core.windows import HOUR_MS
from paimon_features.definitions import CompiledView
from paimon_features.lake.catalog import Lake
from paimon_features.lake.reading.deltas import DataFile
from paimon_features.lake.specs import TILE_DAY
from paimon_features.lake.storage.json_files import read_json, write_json
from paimon_features.lake.storage.write_errors import write_errors
from paimon_features.lake.table_folders import rollup_folder

LEVELS_DAYS = PARTITION_DAYS
"""Days of the spans of each level; each divides the next."""
STALE_KEPT_MS = 2 * HOUR_MS
"""The retention of a rollup after its last use, for reads that have started on it."""

_FORMAT = 1
_ROLLED, _NOT_WORTH, _SEAL = ".parquet", ".none", ".json"
_SUFFIXES = (_ROLLED, _NOT_WORTH, _SEAL)
_TAIL = struct.Struct("<I4s")
"""The end of a Parquet file: the length of the footer, and PAR1."""

Whole = Callable[[int, int], bool]
"""Whether the days from (inclusive) to (exclusive) may be read as one row per entity."""


@dataclass(frozen=True, slots=True)
class Unit:
    """The data files of one bucket in one span: days ``[first_day, end_day)``, at a level.

    ``partition_days`` are those of the files, no more than the span's.
    """

    level: int
    index: int
    bucket: int
    files: Sequence[DataFile]

    @property
    def has_parts(self) -> bool:
        """Whether the span can be divided: a file of a partition is within one unit."""
        return self.level > 0 and self.files[0].partition_days < LEVELS_DAYS[self.level]

    @property
    def first_day(self) -> int:
        return self.index * LEVELS_DAYS[self.level]

    @property
    def end_day(self) -> int:
        return self.first_day + LEVELS_DAYS[self.level]

    def parts(self) -> Iterator[Unit]:
        """Return the units of the next lower level that have files, oldest first."""
        return _units(self.level - 1, self.bucket, self.files)


class Rollups:
    """The rollups of one tile table, as one view's definition reads it.

    A rollup depends on its data files, the view's partials and the length of their lists; its name
    contains all of these.
    """

    def __init__(self, lake: Lake, view: CompiledView, table: str) -> None:
        self.lake, self.table = lake, table
        folder = rollup_folder(lake, table)
        if folder is None:
            raise ConfigurationError(
                f"table {table!r}: rollups are kept in a folder, and warehouse {lake.warehouse!r} "
                "is an object store; set side_folder, or do without them: they only make "
                "historical reads faster"
            )
        self.folder = folder
        limits = [f"{p.name}={p.limit}" for p in view.partials if p.limit is not None]
        self._content = "\n".join([str(_FORMAT), view.fingerprint, *limits, ""])

    @classmethod
    def of(cls, lake: Lake, view: CompiledView, table: str) -> Rollups | None:
        """Return the existing rollups; None if the table has none."""
        if rollup_folder(lake, table) is None:
            return None
        rollups = cls(lake, view, table)
        return rollups if rollups.folder.is_dir() else None

    def cover(self, files: Iterable[DataFile], whole: Whole) -> list[DataFile]:
        """Return files with the same content as ``files`` in fewer rows, by bucket and time.

        A rollup replaces the files of a span that is ``whole``: its rows have the form of tiles,
        with
        the start of the newest tile in the span. All other files are unchanged.
        """
        out: list[DataFile] = []
        wide: list[DataFile] = []
        for unit in _top_units(files, wide):
            self._cover(unit, whole, out)
        return [*wide, *out]

    def _cover(self, unit: Unit, whole: Whole, out: list[DataFile]) -> None:
        if whole(unit.first_day, unit.end_day) and (file := self.find(unit)) is not None:
            out.append(file)
        elif unit.has_parts:
            for part in unit.parts():
                self._cover(part, whole, out)
        else:
            out.extend(unit.files)

    def find(self, unit: Unit) -> DataFile | None:
        """Return the rollup of exactly these files, None if it does not exist or is damaged."""
        path = self._path(unit, _ROLLED)
        try:
            seal = read_json(self._path(unit, _SEAL))
            if seal is None or seal["footer"] != _footer_digest(path, seal["size"]):
                return None
        except (DamagedFileError, OSError):
            return None
        day, rows, size = {TILE_DAY: unit.first_day}, seal["rows"], seal["size"]
        days = LEVELS_DAYS[unit.level]
        return DataFile(
            unit.bucket, day, str(path), 0, "ADD", rows, size, schema_id=0, partition_days=days
        )

    # -- for the writer, which holds the lease on ``owner`` -----------------------------------

    @property
    def owner(self) -> str:
        """The lease name of rollups, in place of a table name."""
        return f"rollup_{self.table.removeprefix('tiles_')}"

    def units(self, files: Iterable[DataFile]) -> list[Unit]:
        """Return all units of these files, lowest level first, so that parts precede their unit."""
        level = list(_top_units(files))
        levels = [level]
        for _ in LEVELS_DAYS[1:]:
            level = [part for unit in level if unit.has_parts for part in unit.parts()]
            levels.append(level)
        return [unit for units in reversed(levels) for unit in units]

    def done(self, unit: Unit) -> bool:
        """Return True if a rollup of exactly these files exists, or a marker that it does not
        pay."""
        return self.find(unit) is not None or self._path(unit, _NOT_WORTH).exists()

    def put(self, unit: Unit, rows: pa.Table | None) -> None:
        """Publish a unit's rollup atomically; None for one that does not pay."""
        path = self._path(unit, _NOT_WORTH if rows is None else _ROLLED)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
        with write_errors(f"{path} cannot be written"):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with temporary.open("wb") as file:
                    if rows is not None:
                        # footers of two rollups differ, so one in the place of another is found
                        pq.write_table(
                            rows.replace_schema_metadata({"rollup": path.name}),
                            file,
                            compression="zstd",
                            use_dictionary=False,
                            write_page_checksum=True,
                        )
                    file.flush()
                    os.fsync(file.fileno())
                size = temporary.stat().st_size
                os.replace(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
        if rows is not None:
            seal = self._path(unit, _SEAL)
            seal.unlink(missing_ok=True)  # it can be damaged
            footer = _footer_digest(path, size)
            write_json(seal, {"size": size, "rows": rows.num_rows, "footer": footer})

    def sweep(self, units: Iterable[Unit], now_ms: int) -> int:
        """Delete files of none of these units, two hours after they were first found unused.

        Returns the number of deleted files.
        """
        live = {self._path(unit, suffix) for unit in units for suffix in _SUFFIXES}
        stale = self.folder / "stale.json"
        unused = read_json(stale) or {}
        since: dict[str, int] = {}
        deleted = 0
        for level in LEVELS_DAYS:
            for path in (self.folder / str(level)).glob("*"):
                if path in live:
                    continue
                name = f"{level}/{path.name}"
                since[name] = unused.get(name, now_ms)
                if since[name] <= now_ms - STALE_KEPT_MS:
                    path.unlink(missing_ok=True)
                    del since[name]
                    deleted += path.suffix != _SEAL
        if since != unused:
            write_json(stale, since)
        return deleted

    def _path(self, unit: Unit, suffix: str) -> Path:
        names = sorted(os.path.basename(file.path) for file in unit.files)
        text = self._content + "\n".join(names)
        key = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        name = f"{unit.index}-{unit.bucket}-{key}{suffix}"
        return self.folder / str(LEVELS_DAYS[unit.level]) / name


def _footer_digest(path: Path, size: int) -> str | None:
    """Return a hash of the footer; None if the file has another size, or no footer."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size != size or size < _TAIL.size:
            return None
        file.seek(size - _TAIL.size)
        length, magic = _TAIL.unpack(file.read(_TAIL.size))
        start = size - _TAIL.size - length
        if magic != b"PAR1" or start < 0:
            return None
        file.seek(start)
        return hashlib.blake2b(file.read(), digest_size=16).hexdigest()


def _top_units(files: Iterable[DataFile], wide: list[DataFile] | None = None) -> Iterator[Unit]:
    """Yield the units of the highest level.

    Files of longer partitions are added to ``wide`` instead.
    """
    by_bucket: dict[int, list[DataFile]] = {}
    for file in files:
        if file.partition_days <= LEVELS_DAYS[-1]:
            by_bucket.setdefault(file.bucket, []).append(file)
        elif wide is not None:
            wide.append(file)
    for bucket, bucket_files in sorted(by_bucket.items()):
        yield from _units(len(LEVELS_DAYS) - 1, bucket, bucket_files)


def _units(level: int, bucket: int, files: Iterable[DataFile]) -> Iterator[Unit]:
    by_span: dict[int, list[DataFile]] = {}
    for file in files:
        by_span.setdefault(int(file.partition[TILE_DAY]) // LEVELS_DAYS[level], []).append(file)
    for index, span_files in sorted(by_span.items()):
        yield Unit(level, index, bucket, span_files)
