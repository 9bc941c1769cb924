"""The content of a snapshot: data files, schemas, and the rules for merging rows of one key.

For readers that open the data files themselves. ``read_content`` reads manifests only; the
files that may share a key (a section) follow from their key bounds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from paimon_features.core.errors import DamagedFileError, TableError
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata.manifests import manifest_damage, raw_snapshot, read_entries
from paimon_features.lake.metadata.snapshots import expired
from paimon_features.lake.reading.deltas import DataFile

Engine = Literal["append", "deduplicate", "first-row", "partial-update", "aggregation"]

SEQUENCE_NUMBER = "_SEQUENCE_NUMBER"
KEY_PREFIX = "_KEY_"


@dataclass(frozen=True, slots=True)
class SchemaField:
    """A column in one version of a table's schema; its ``id`` survives renames."""

    id: int
    name: str
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Bounds:
    """The manifest's statistics of a column in a file; None if unknown."""

    least: Any = None
    greatest: Any = None
    nulls: int | None = None


@dataclass(frozen=True, slots=True)
class ContentFile:
    """One data file of a snapshot.

    ``rows`` counts the rows in the file, before merging. Files of one ``section`` can contain the
    same key, files of different sections cannot. ``merges`` is False if its rows are final (except
    for ``deletion``). ``has_deletes`` is False if row kinds can be ignored. ``place`` is its number
    among the files of its partition and bucket, in the order of their commits. ``bounds`` has the
    requested columns, by their current names.
    """

    path: str
    rows: int
    size: int
    level: int
    schema_id: int
    bucket: int
    partition: Mapping[str, Any]
    sequence: tuple[int, int]
    section: int
    merges: bool
    has_deletes: bool
    place: int
    bounds: Mapping[str, Bounds] = field(default_factory=dict)
    deletion: Any = None

    @property
    def name(self) -> str:
        return self.path.rsplit("/", 1)[-1]

    @property
    def split(self) -> str:
        """Partition and bucket, for messages."""
        values = "/".join(f"{name}={value}" for name, value in self.partition.items())
        return f"{values}/bucket-{self.bucket}" if values else f"bucket-{self.bucket}"


@dataclass(frozen=True)
class MergeRules:
    """The rules for merging rows of one key.

    ``keys`` are the primary key without the partition columns. ``functions`` are the aggregate
    functions of the other columns, for merge engines that fold; ``sequence`` is the declared
    ``sequence.field`` (nulls first, then by sequence number).
    """

    engine: Engine
    keys: tuple[str, ...] = ()
    functions: Mapping[str, str] = field(default_factory=dict)
    delimiters: Mapping[str, str] = field(default_factory=dict)
    sequence: tuple[str, ...] = ()
    ascending: bool = True
    ignore_delete: bool = False

    @property
    def folds(self) -> bool:
        """Whether a merged row combines several rows instead of selecting one."""
        return self.engine in ("partial-update", "aggregation")


@dataclass(frozen=True)
class Content:
    """The files of a snapshot by section, the merge rules, and the file schemas by id."""

    table: str
    snapshot_id: int
    rules: MergeRules
    files: tuple[ContentFile, ...]
    fields: Mapping[str, SchemaField]
    schemas: Mapping[int, Mapping[int, SchemaField]]


def read_content(
    lake: Lake, name: str, snapshot_id: int, statistics: Collection[str] = ()
) -> Content:
    """Return the files of a snapshot and how to read them; ``statistics`` are columns to read
    bounds of.

    Rows that are not visible to readers are excluded: level 0 files of tables with deletion vectors
    or the first-row engine, and postponed buckets.

    Raises
    ------
    SnapshotExpiredError, UnknownNameError
        If the snapshot or the table does not exist.
    TableError
        For an unsupported merge engine, aggregate function or option.
    """
    table = lake.table(name)
    rules = merge_rules(lake, name)
    described = raw_snapshot(lake, name, snapshot_id)
    try:
        with manifest_damage(lake, name, snapshot_id):
            entries = read_entries(lake, name, described, statistics=bool(statistics))
            deletions = _deletions(table, described)
    except FileNotFoundError as error:
        raise expired(lake, name, snapshot_id) from error
    if rules.keys:
        skip_level0 = table.options.batch_scan_skip_level0()
        entries = [e for e in entries if e.bucket >= 0 and not (skip_level0 and e.file.level == 0)]
    schemas = {number: _fields(table, number) for number in {e.file.schema_id for e in entries}}
    fields = {f.name: f for f in _fields(table, table.table_schema.id).values()}
    files: list[ContentFile] = []
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for entry in entries:
        groups.setdefault((tuple(entry.partition.values), entry.bucket), []).append(entry)
    section = 0
    for (values, bucket), group in groups.items():
        folder = table.path_factory().bucket_path(values, bucket)
        places = {id(entry): place for place, entry in enumerate(in_commit_order(rules, group))}
        for part, merges in _sections(table, rules, group):
            for entry in part:
                meta = entry.file
                with manifest_damage(lake, name, snapshot_id):
                    bounds = _bounds(table, meta, schemas[meta.schema_id], fields, statistics)
                files.append(
                    ContentFile(
                        path=meta.external_path or f"{folder}/{meta.file_name}",
                        rows=meta.row_count,
                        size=meta.file_size,
                        level=meta.level,
                        schema_id=meta.schema_id,
                        bucket=bucket,
                        partition=dict(zip(table.partition_keys, values, strict=True)),
                        sequence=(meta.min_sequence_number, meta.max_sequence_number),
                        section=section,
                        merges=merges,
                        # Python writers always store 0; compactions store the count
                        has_deletes=bool(rules.keys)
                        and (meta.level == 0 or meta.delete_row_count != 0),
                        place=places[id(entry)],
                        bounds=bounds,
                        deletion=deletions.get((values, bucket, meta.file_name)),
                    )
                )
            section += 1
    return Content(name, snapshot_id, rules, tuple(files), fields, schemas)


def content_of(lake: Lake, name: str, snapshot_id: int, files: Iterable[DataFile]) -> Content:
    """Return a content with some files of an append table, such as those of one commit.

    Raises
    ------
    TableError
        For a table with a primary key, or an unsupported option.
    """
    rules = merge_rules(lake, name)
    if rules.keys:
        raise TableError(
            f"table {name!r} has the primary key ({', '.join(rules.keys)}): files alone "
            "are not its rows"
        )
    table = lake.table(name)
    content_files = tuple(
        ContentFile(
            path=file.path,
            rows=file.rows,
            size=file.size,
            level=file.level,
            schema_id=file.schema_id,
            bucket=file.bucket,
            partition=file.partition,
            sequence=(0, 0),
            section=section,
            merges=False,
            has_deletes=False,
            place=section,
        )
        for section, file in enumerate(files)
    )
    schemas = {number: _fields(table, number) for number in {f.schema_id for f in content_files}}
    fields = {f.name: f for f in _fields(table, table.table_schema.id).values()}
    return Content(name, snapshot_id, rules, content_files, fields, schemas)


def deleted_rows(lake: Lake, name: str, file: ContentFile) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the row numbers deleted by a file's deletion vector, ascending.

    Raises
    ------
    OSError, TableError
        If the vector cannot be read.
    """
    if file.deletion is None:
        return np.empty(0, np.int64)
    from pypaimon.deletionvectors.deletion_vector import DeletionVector

    try:
        vector = DeletionVector.read(lake.table(name).file_io, file.deletion)
    except (RuntimeError, ValueError) as error:
        raise TableError(
            f"its deletion vector in {file.deletion.dv_index_path} cannot be read: {error}"
        ) from error
    return np.fromiter(vector.bit_map(), np.int64)


def merge_rules(lake: Lake, name: str) -> MergeRules:
    """Return the merge rules of a table, from its options.

    Raises
    ------
    TableError
        For an unsupported option, which the message names.
    """
    table = lake.table(name)
    options: Mapping[str, str] = table.options.options.to_map()
    if str(options.get("data-evolution.enabled", "false")).lower() == "true":
        raise TableError(
            f"table {name!r} has data-evolution.enabled=true: its rows are spread over files by "
            "column; write them to a plain table with append_stream"
        )
    if not table.primary_keys:
        return MergeRules("append")
    engine = str(table.options.merge_engine().value)
    keys = tuple(table.trimmed_primary_keys)
    ignore = any(
        options.get(f"{prefix}ignore-delete", "").lower() == "true" for prefix in ("", f"{engine}.")
    )
    sequence = tuple(table.options.sequence_field())
    ascending = bool(table.options.sequence_field_sort_order_is_ascending())
    if engine in ("deduplicate", "first-row"):
        return MergeRules(
            engine,  # type: ignore[arg-type]
            keys,
            sequence=sequence,
            ascending=ascending,
            ignore_delete=ignore,
        )
    refused = [
        key
        for key, value in options.items()
        if (key.startswith("fields.") and key.endswith((".sequence-group", ".ignore-retract")))
        or (".remove-record-on-" in key and str(value).lower() == "true")
        or (
            engine == "partial-update"
            and key.startswith("fields.")
            and key.endswith("aggregate-function")
        )
    ]
    if refused or engine not in ("partial-update", "aggregation"):
        setting = f"option {sorted(refused)[0]!r}" if refused else f"merge-engine={engine}"
        raise TableError(
            f"table {name!r}: {setting} is not supported; compact the table and copy its "
            "rows by Flink to an append table"
        )
    functions, delimiters = _functions(table, options, sequence, engine)
    return MergeRules(engine, keys, functions, delimiters, sequence, ascending, ignore)  # type: ignore[arg-type]


FUNCTIONS = (
    "last_value", "last_non_null_value", "first_value", "first_non_null_value", "sum", "product",
    "min", "max", "bool_or", "bool_and", "listagg",
)  # fmt: skip
"""The supported aggregate functions."""


def _functions(
    table: Any, options: Mapping[str, str], sequence: Sequence[str], engine: str
) -> tuple[dict[str, str], dict[str, str]]:
    functions: dict[str, str] = {}
    delimiters: dict[str, str] = {}
    default = options.get("fields.default-aggregate-function", "last_non_null_value")
    for column in table.fields:
        name = column.name
        if name in table.primary_keys:
            continue
        function = "last_non_null_value"
        if engine == "aggregation":
            configured = options.get(f"fields.{name}.aggregate-function", default)
            function = "last_value" if name in sequence else configured
        distinct = options.get(f"fields.{name}.distinct", "").lower() == "true"
        # an unsupported function is rejected when its column is read
        functions[name] = f"{function} distinct" if distinct else function
        delimiters[name] = options.get(f"fields.{name}.list-agg-delimiter", ",")
    return functions, delimiters


def _fields(table: Any, schema_id: int) -> dict[int, SchemaField]:
    from pypaimon.schema.data_types import PyarrowFieldParser

    schema = table.table_schema
    if schema.id != schema_id:
        schema = table.schema_manager.get_schema(schema_id)
    if schema is None:
        raise DamagedFileError(
            f"table {table.identifier.get_full_name()!r} has no schema {schema_id}, which one of "
            "its data files has by its manifest: restore the schema or the manifest from a backup"
        )
    types = PyarrowFieldParser.from_paimon_schema(schema.fields)
    return {f.id: SchemaField(f.id, f.name, types.field(f.name).type) for f in schema.fields}


def in_commit_order(rules: MergeRules, entries: Sequence[Any]) -> list[Any]:
    """Return the manifest entries of one partition and bucket in the order of their commits.

    A snapshot lists its files in that order, except for rewritten ones, which are listed where
    the compaction committed them. Sequence numbers are the order of the rows even then, but only
    of tables with a primary key or a fixed number of buckets: otherwise every commit counts from
    0, and Python writers of append tables store zeros.
    """

    def numbers(entry: Any) -> tuple[int, int]:
        return entry.file.min_sequence_number, entry.file.max_sequence_number

    ordered = sorted(entries, key=numbers)
    if rules.keys:
        return ordered
    counted = all(
        entry.total_buckets > 0 and last - first + 1 == entry.file.row_count
        for entry in entries
        for first, last in [numbers(entry)]
    )
    apart = all(numbers(one)[1] < numbers(other)[0] for one, other in pairwise(ordered))
    return ordered if counted and apart else list(entries)


def _sections(
    table: Any, rules: MergeRules, entries: Sequence[Any]
) -> Iterator[tuple[list[Any], bool]]:
    """Yield sections of files that can share a key, and if they are merged, as Paimon does."""
    if not rules.keys:
        for entry in entries:
            yield [entry], False
        return
    files = [entry.file for entry in entries]
    compacted = all(f.level != 0 and not f.delete_row_count for f in files)
    alone = table.options.deletion_vectors_enabled() or rules.engine == "first-row"
    if compacted and (alone or len({f.level for f in files}) == 1):
        for entry in entries:
            yield [entry], False
        return
    from pypaimon.read.interval_partition import IntervalPartition

    by_file = {id(entry.file): entry for entry in entries}
    for runs in IntervalPartition(files).partition():
        section = [by_file[id(file)] for run in runs for file in run.files]
        yield section, len(section) > 1


def _deletions(table: Any, described: Any) -> dict[tuple[Any, int, str], Any]:
    if not getattr(described, "index_manifest", None):
        return {}
    from pypaimon.manifest.index_manifest_file import IndexManifestFile
    from pypaimon.table.source.deletion_file import DeletionFile

    deletion_files: dict[tuple[Any, int, str], Any] = {}
    for entry in IndexManifestFile(table).read(described.index_manifest):
        if entry.index_file.index_type != IndexManifestFile.DELETION_VECTORS_INDEX:
            continue
        values = tuple(entry.partition.values)
        for file_name, ranges in (entry.index_file.dv_ranges or {}).items():
            path = table.path_factory().bucket_index_path(
                values, entry.bucket, entry.index_file, table.file_io
            )
            deletion_files[values, entry.bucket, file_name] = DeletionFile(
                dv_index_path=path,
                offset=ranges.offset,
                length=ranges.length,
                cardinality=ranges.cardinality,
            )
    return deletion_files


def _bounds(
    table: Any,
    meta: Any,
    schema: Mapping[int, SchemaField],
    fields: Mapping[str, SchemaField],
    columns: Collection[str],
) -> Mapping[str, Bounds]:
    """Return minimum, maximum and null count of columns of which the manifest has the type."""
    bounds = {}
    for column in columns:
        stored = schema.get(fields[column].id)
        if stored is None:
            bounds[column] = Bounds(nulls=meta.row_count)
            continue
        if stored.type != fields[column].type:
            continue
        for stats in (meta.value_stats, meta.key_stats):
            names = [f.name for f in getattr(stats.min_values, "fields", [])]
            if stored.name not in names:
                continue
            place = names.index(stored.name)
            nulls = stats.null_counts[place] if place < len(stats.null_counts or ()) else None
            least, greatest = (row.get_field(place) for row in (stats.min_values, stats.max_values))
            if least is not None and greatest is not None:
                bounds[column] = Bounds(least, greatest, nulls)
            elif nulls == meta.row_count:
                bounds[column] = Bounds(nulls=nulls)
            break
    return bounds
