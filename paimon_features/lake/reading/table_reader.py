"""Read a table at one pinned snapshot, merged to one row per key.

Two routes return the same rows: the native one (package ``pypaimon-rust``, about twenty times
faster at merging) and pypaimon's own. ``read_route`` returns the one in use.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.errors import (
    DamagedFileError,
    PaimonFeaturesError,
    TableError,
    UnknownNameError,
)
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata.snapshots import (
    Snapshot,
    SnapshotRef,
    expired,
    latest_snapshot,
    pinned,
    snapshot,
    snapshot_as_of,
    snapshot_ids,
    snapshots,
    tagged,
)
from paimon_features.lake.metadata_damage import check_inside
from paimon_features.lake.storage import damaged

__all__ = [
    "Range",
    "Snapshot",
    "iter_batches",
    "latest_snapshot",
    "read_arrow",
    "read_route",
    "snapshot",
    "snapshot_as_of",
    "snapshots",
]

_VERIFIED_BYTES = 256 << 20
"""How much is verified before it is read: no more than the page cache surely keeps."""

_POSTPONED = -2
"""The number of buckets of a table whose rows are invisible until they are compacted."""

Range = tuple[Any, Any]
"""Bounds of a column: (from inclusive, to exclusive); None for no bound."""


def read_route(lake: Lake, name: str) -> str:
    """``"native"`` or ``"python"``: the route of reads of this table on this machine.

    pypaimon falls back silently; this repeats its checks.
    """
    if importlib.util.find_spec("pypaimon_rust") is None:
        return "python"
    from pypaimon.read.native_plan import _prepare_native_read, native_reader_available

    builder = lake.table(name).new_read_builder()
    if not native_reader_available() or not builder.new_scan()._native_plan_supported():
        return "python"
    try:
        _prepare_native_read(lake.table(name), read_type=builder.read_type())
    except Exception:  # pypaimon falls back to Python on any failure
        return "python"
    return "native"


def read_arrow(
    lake: Lake,
    name: str,
    columns: Sequence[str] | None = None,
    snapshot_id: SnapshotRef | None = None,
    partitions: Mapping[str, Range] | None = None,
    where: Mapping[str, Collection[Any]] | None = None,
    buckets: Collection[int] | None = None,
    native: bool = True,
) -> pa.Table:
    """Return the merged rows of a table at one snapshot; row order is not defined.

    Parameters
    ----------
    columns
        The columns, in this order; all by default.
    snapshot_id
        The snapshot: its number, or ``number@commit``; the latest by default. A table without
        snapshots is empty.
    partitions
        Ranges (from inclusive, to exclusive) of partition or key columns. Files outside
        are not opened, rows outside are not returned.
    where
        Allowed values of key columns, for example ``{"customer_id": [12346]}``.
    buckets
        Only these buckets.
    native
        False forces pypaimon's own route.

    Raises
    ------
    SnapshotExpiredError, UnknownNameError
        If the snapshot, the table or a column does not exist. Of a table that was rolled back or
        created again, a number alone may be that of other rows: pass ``number@commit``.
    DamagedFileError
        If a manifest or a data file is not what was written.
    TableError
        For a filter on a column that is not a key, whose value is known only after merging.
    """
    reader = _Reader(lake, name, columns, snapshot_id, partitions, where, buckets, native)
    return pa.Table.from_batches(reader.batches(), reader.schema)


def iter_batches(
    lake: Lake,
    name: str,
    columns: Sequence[str] | None = None,
    snapshot_id: SnapshotRef | None = None,
    partitions: Mapping[str, Range] | None = None,
    where: Mapping[str, Collection[Any]] | None = None,
    buckets: Collection[int] | None = None,
    native: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Return the rows of ``read_arrow`` batch by batch, in bounded memory (one bucket of one
    partition is merged at a time, from sorted files). Errors are raised before the first batch."""
    reader = _Reader(lake, name, columns, snapshot_id, partitions, where, buckets, native)
    return reader.batches()


class _Reader:
    def __init__(
        self,
        lake: Lake,
        name: str,
        columns: Sequence[str] | None,
        snapshot_id: SnapshotRef | None,
        partitions: Mapping[str, Range] | None,
        where: Mapping[str, Collection[Any]] | None,
        buckets: Collection[int] | None,
        native: bool,
    ) -> None:
        self.ranges = dict(partitions or {})
        self.where = {column: list(values) for column, values in (where or {}).items()}
        self.buckets = None if buckets is None else frozenset(buckets)
        full = lake.schema(name)
        self.columns = list(full.names if columns is None else columns)
        filtered = [*self.ranges, *self.where]
        for column in (*self.columns, *filtered):
            if column not in full.names:
                raise UnknownNameError.of("column", column, full.names, f"table {name!r}")
        table = lake.table(name)
        keys = [*table.primary_keys, *table.partition_keys]
        for column in filtered:
            # before merging, a value column contains partials
            if table.primary_keys and column not in keys:
                raise TableError(
                    f"table {name!r}: cannot filter on {column!r} while reading, because its "
                    f"value is known after merging; filter on: {', '.join(keys)}"
                )
        self.read_columns = list(dict.fromkeys([*self.columns, *filtered]))
        self.schema = pa.schema([full.field(column) for column in self.columns])
        options = {} if native else _PYTHON_ROUTE
        snapshot = (
            latest_snapshot(lake, name) if snapshot_id is None else pinned(lake, name, snapshot_id)
        )
        number = None if snapshot is None else snapshot.id
        pin = None if number is None else scan_options(lake, name, number)
        self.lake, self.name, self.snapshot_id = lake, name, number
        self.table = None if pin is None else table.copy({**options, **pin})

    def batches(self) -> Iterator[pa.RecordBatch]:
        if self.table is None:
            return iter(())
        builder = self.table.new_read_builder().with_projection(self.read_columns)
        predicate = self._predicate()
        if predicate is not None:
            builder = builder.with_filter(predicate)
        with self._errors_explained():
            splits = builder.new_scan().plan().splits()
        self._check_rows(splits if predicate is None else None)
        if self.buckets is not None:
            splits = [split for split in splits if split.bucket in self.buckets]
        if not splits:
            return iter(())
        return self._stream(builder.new_read(), splits)

    def _stream(self, read: Any, splits: list[Any]) -> Iterator[pa.RecordBatch]:
        files = (file for split in splits for file in split.files)
        paths = (getattr(file, "external_path", None) or file.file_path for file in files)
        check_inside(self.lake.path(self.name), paths)
        for some in self._verified(splits):
            yield from self._stream_verified(read, some)

    def _check_rows(self, splits: list[Any] | None) -> None:
        """Raise DamagedFileError if the files of the plan are not all that the snapshot counts.

        A plan without files that a filter rules out says nothing: then from the manifests.
        """
        options = self.table.options  # type: ignore[union-attr]
        hidden = options.batch_scan_skip_level0() or options.bucket() == _POSTPONED
        if self.snapshot_id is None:
            return
        # of the newest snapshot, no other commit's manifest can have taken a place unseen
        newest = latest_snapshot(self.lake, self.name)
        if splits is None or hidden or newest is None or newest.id != self.snapshot_id:
            from paimon_features.lake.metadata.manifests import check_manifests

            check_manifests(self.lake, self.name, self.snapshot_id)
            return
        files = {file.file_path: file.row_count for split in splits for file in split.files}
        row_count = sum(files.values())  # of a file that is there twice, once
        expected = snapshot(self.lake, self.name, self.snapshot_id).total_records
        if row_count != expected:
            raise DamagedFileError(
                f"table {self.name!r}, snapshot {self.snapshot_id}: by its manifests its files "
                f"have {row_count} rows, by the snapshot {expected}: one of them is damaged. "
                "Restore it from a backup, or roll the table back to a snapshot without it"
            )

    def _verified(self, splits: list[Any]) -> Iterator[list[Any]]:
        """Yield the splits, some at a time, after their pages have been verified.

        Neither of pypaimon's routes verifies them, so the files are read twice, the second time
        from memory. A remote file would be transferred twice: it is left to its store.
        """
        if self.lake.storage.is_remote:
            yield splits
            return
        held: list[Any] = []
        size = 0
        for split in splits:
            with self._named():
                for file in split.files:
                    self._verify(file)
                    size += file.file_size
            held.append(split)
            if size >= _VERIFIED_BYTES:
                yield held
                held, size = [], 0
        if held:
            yield held

    def _verify(self, file: Any) -> None:
        path = file.file_path
        if not path.endswith(".parquet"):
            return
        table: Any = self.table
        # a file of another schema can have other names, and merging reads all columns
        every = table.primary_keys or file.schema_id != table.table_schema.id
        with self.lake.storage.open_parquet(path, file.file_size) as parquet:
            rows = parquet.metadata.num_rows
            if rows != file.row_count:
                raise damaged(path, f"it has {rows} rows; its manifest says {file.row_count}")
            if file.schema_id == table.table_schema.id and not file.write_cols:
                lacking = set(self.read_columns) - set(parquet.schema_arrow.names)
                if lacking:
                    raise damaged(path, f"it has no column {min(lacking)!r}, which its schema has")
            parquet.verify(None if every else self.read_columns)

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            with self._errors_explained():
                yield
        except DamagedFileError as error:
            raise DamagedFileError(
                f"table {self.name!r}, snapshot {self.snapshot_id}: {error}"
            ) from error

    def _stream_verified(self, read: Any, splits: list[Any]) -> Iterator[pa.RecordBatch]:
        # one worker: callers parallelise over buckets or shards
        with self._errors_explained():
            reader = read.to_arrow_batch_reader(splits, parallelism=1)
        while True:
            with self._errors_explained():
                batch = next(reader, None)
            if batch is None:
                return
            exact = self._exactly(batch)
            if exact.num_rows:
                columns = [
                    exact.column(name).cast(self.schema.field(name).type) for name in self.columns
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=self.schema)

    @contextmanager
    def _errors_explained(self) -> Iterator[None]:
        """Raise errors of pypaimon as ours: what cannot be read, and what to do.

        SnapshotExpiredError for a missing file if the snapshot expired during the read.
        """
        try:
            yield
        except (PaimonFeaturesError, MemoryError):
            raise
        except BaseException as error:
            # a panic of the native reader is no Exception
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            snapshot_id = self.snapshot_id
            if snapshot_id is not None and snapshot_id not in snapshot_ids(self.lake, self.name):
                tags = tagged(self.lake, self.name).values()
                if snapshot_id not in [tag.id for tag in tags]:
                    raise expired(self.lake, self.name, snapshot_id) from error
            missing = isinstance(error, FileNotFoundError)
            raise (DamagedFileError if missing else TableError)(
                f"table {self.name!r}, snapshot {snapshot_id}: it cannot be read: "
                f"{' '.join(str(error).split())}. "
                + (
                    "Restore the file from a backup, or roll the table back"
                    if missing
                    else "If a file is damaged: restore it from a backup, or roll the table back"
                )
            ) from error

    def _predicate(self) -> Any:
        build = self.table.new_read_builder().new_predicate_builder()  # type: ignore[union-attr]
        terms = []
        for column, (low, high) in self.ranges.items():
            if low is not None:
                terms.append(build.greater_or_equal(column, low))
            if high is not None:
                terms.append(build.less_than(column, high))
        for column, values in self.where.items():
            terms.append(build.is_in(column, values))
        return build.and_predicates(terms) if terms else None

    def _exactly(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        # pushed-down filters only skip files: rows are filtered here, on both routes
        mask = None
        for column, (low, high) in self.ranges.items():
            values = batch.column(column)
            for bound, compare in ((low, pc.greater_equal), (high, pc.less)):
                if bound is not None:
                    term = compare(values, pa.scalar(bound, values.type))
                    mask = term if mask is None else pc.and_(mask, term)
        for column, wanted in self.where.items():
            values = batch.column(column)
            term = pc.is_in(values, pa.array(wanted, values.type))
            mask = term if mask is None else pc.and_(mask, term)
        return batch if mask is None else batch.filter(mask)


_PYTHON_ROUTE = {"read.native.enabled": "false", "scan.native-plan.enabled": "false"}


def scan_options(lake: Lake, name: str, snapshot_id: int) -> dict[str, str]:
    """Return the scan option, of pypaimon and of Flink, that pins the snapshot.

    Raises
    ------
    SnapshotExpiredError
        If neither the snapshot nor a tag of it exists.
    """
    if snapshot_id not in snapshot_ids(lake, name):
        snapshot(lake, name, snapshot_id)  # raises unless a tag retains it
        tag = next(tag for tag, s in tagged(lake, name).items() if s.id == snapshot_id)
        return {"scan.tag-name": tag}
    return {"scan.snapshot-id": str(snapshot_id)}
