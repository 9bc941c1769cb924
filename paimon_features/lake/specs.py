"""The tables of a project: columns, keys, partitions, options.

A spec is plain data; ``ddl`` turns it into Flink SQL and ``Lake.create`` into a table.

>>> from paimon_features.core.types.schema import Int64
>>> spec = tiles_spec("tiles_spend_g1", {"customer_id": Int64}, [("n", Int64, "sum")], buckets=4)
>>> spec.primary_key, spec.options["bucket-key"]
(('tile_day', 'customer_id', 'tile_start'), 'customer_id')
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from paimon_features.core.errors import DefinitionError
from paimon_features.core.expressions import DELIMITER
from paimon_features.core.types.schema import (
    Bytes,
    DataType,
    Int32,
    Int64,
    String,
    check_name,
)
from paimon_features.core.windows import DAY_MS, MIN_TIME_MS
from paimon_features.definitions.derived import START_DAY
from paimon_features.definitions.served import (
    OUTCOME_COLUMNS,
    PREDICTION_COLUMNS,
    SERVED_COLUMNS,
)
from paimon_features.definitions.source import FEEDBACK_COLUMNS

EVENT_DAY = "event_day"
"""Days since 1970 of the event time, INT: the partition column of an events table.

Rounded down to a multiple of the table's ``partition_days``, like ``TILE_DAY``.
"""
INGEST_TIME_MS = "ingest_time_ms"
TILE_DAY = "tile_day"
"""Days since 1970 of the tile's start, INT: the partition column of a tile table.

Rounded down to a multiple of the table's ``partition_days``: all rows of a tile have the same.
"""
PARTITION_DAYS_OPTION = "paimon-features.partition-days"
"""The option of a table whose partitions contain more than a day (see ``partition_days``)."""
TILE_START = "tile_start"
"""First millisecond of the tile, BIGINT."""
UNKNOWN_DAY = MIN_TIME_MS // DAY_MS - 1
"""``tile_day`` of skipped rows with a null or invalid time: the day before the first valid one."""

SERVED_DAY = "served_day"
"""Days since 1970 of the reply, INT: the partition column of a request log."""
SPOOL_FILE = "spool_file"
"""The spool file of a row of a request log."""

TRAINING_VALUES = "training-set.values"
"""Property of a training set: what the values of each of its columns mean, as JSON."""
TRAINING_PREFIX = "training_"
"""The name prefix of training set tables."""

FITTED_PREFIX = "fitted_"
"""The name prefix of tables of fitted transformers."""

MODELS_PREFIX = "models_"
"""The name prefix of tables of model versions."""

PREDICTIONS_PREFIX = "predictions_"
"""The name prefix of tables of logged predictions."""

OUTCOMES_PREFIX = "outcomes_"
"""The name prefix of tables of predictions with their outcomes."""

FILES_OF = "files_of"
"""The version whose files are in a row of a table of models, INT: the partition column. Zero for
manifests and states, which are read without the files."""

MERGES = ("sum", "min", "max", "listagg", "rbm32")

MAX_TABLE_NAME = 200
"""Characters of a table's name: files of the side folder add the database and a suffix."""
MAX_COLUMN_NAME = 1_000
"""Characters of a column's name; columns of partials contain the names of several columns."""

TABLE_OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "file.format": "parquet",
        "snapshot.time-retained": "2 h",
        "snapshot.num-retained.min": "20",
        # Paimon applies the count before the time; one snapshot a second is 7,200 in 2 h
        "snapshot.num-retained.max": "2147483647",
        # Flink's readers decode a damaged page without it
        "parquet.page.verify-checksum.enabled": "true",
    }
)
"""Options of every table: Paimon's default retains snapshots for only one hour."""

_FAST_TILES: Mapping[str, str] = MappingProxyType(
    {
        # rows with equal keys are merged before they are sent to the writer of their bucket
        "local-merge-buffer-size": "64 mb",
        # numbers hardly repeat: dictionaries double the cost of writing without saving space
        "parquet.enable.dictionary": "false",
        # a stream adds one file per second and bucket; Paimon would compact every five of them
        "num-sorted-run.compaction-trigger": "10",
    }
)
"""Options that make the tile job 1.5 times as fast without slowing reads.

Figures: docs/internals/performance.md.
"""

_TILES_WITH_LISTS: Mapping[str, str] = MappingProxyType(
    # each item that is joined copies the list so far: of many at one time the quadratic cost
    # shows (a user with 150,000 events in one tile made the job 6 times as slow as with this)
    {**_FAST_TILES, "local-merge-buffer-size": "2 mb"}
)

HOURLY_TAGS: Mapping[str, str] = MappingProxyType(
    {
        "tag.automatic-creation": "process-time",
        "tag.creation-period": "hourly",
        "tag.num-retained-max": "48",
    }
)
"""Two days of hourly tags for time travel, created by Flink's committer."""


@dataclass(frozen=True)
class TableSpec:
    """A table of the lake.

    ``columns`` are ordered; key columns come first, in the order of the key, because composite keys
    must be declared in column order. ``options`` are Paimon's.
    """

    name: str
    columns: Mapping[str, DataType]
    primary_key: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_name("table", self.name, MAX_TABLE_NAME)
        for column in self.columns:
            check_name(f"column of table {self.name!r}:", column, MAX_COLUMN_NAME)
        for role, names in (("primary key", self.primary_key), ("partition", self.partition_by)):
            missing = [name for name in names if name not in self.columns]
            if missing:
                raise DefinitionError(
                    f"table {self.name!r}: the {role} names {', '.join(missing)}; "
                    f"its columns are: {', '.join(self.columns)}"
                )

    def with_options(self, options: Mapping[str, str]) -> TableSpec:
        """Return the same table with further options; later ones win."""
        merged = {**self.options, **options}
        return TableSpec(self.name, self.columns, self.primary_key, self.partition_by, merged)


def _free(table: str, columns: Mapping[str, DataType], reserved: Sequence[str]) -> None:
    conflicts = [name for name in reserved if name in columns]
    if conflicts:
        raise DefinitionError(
            f"table {table!r}: the column name {conflicts[0]!r} is reserved; rename the column"
        )


def events_spec(
    table: str, columns: Mapping[str, DataType], partition_days: int | None = None
) -> TableSpec:
    """Return an append table of events, partitioned by the day of the event time (UTC).

    ``event_day`` and ``ingest_time_ms`` are added by ingestion. A partition contains
    ``partition_days`` days; None leaves the number to the first commit of events.
    """
    _free(table, columns, (EVENT_DAY, INGEST_TIME_MS))
    return TableSpec(
        table,
        {**columns, EVENT_DAY: Int32, INGEST_TIME_MS: Int64},
        partition_by=(EVENT_DAY,),
        options={**TABLE_OPTIONS, **_partition_options(partition_days)},
    )


def _partition_options(partition_days: int | None) -> dict[str, str]:
    # tables without the option have daily partitions
    return {} if partition_days is None else {PARTITION_DAYS_OPTION: str(partition_days)}


def rejected_spec(table: str) -> TableSpec:
    """Return an append table of rejected rows, with the reason.

    ``origin`` is the file or topic, ``ingest_id`` the run that read it, ``raw`` the row as text.
    """
    texts = dict.fromkeys(("reason", "detail", "raw", "origin", "ingest_id"), String)
    return TableSpec(table, {**texts, INGEST_TIME_MS: Int64}, options=TABLE_OPTIONS)


def tiles_spec(
    table: str,
    keys: Mapping[str, DataType],
    partials: Sequence[tuple[str, DataType, str]],
    buckets: int,
    partition_days: int = 1,
) -> TableSpec:
    """Return an aggregation table of tiles; ``partials`` are (column, type, merge function).

    A partition contains ``partition_days`` days.

    All tiles of an entity are in one bucket (``bucket-key`` is the entity's keys). There is no
    changelog producer: with ``lookup`` pypaimon reads wrong sums.

    Raises
    ------
    DefinitionError
        For a merge function not in ``MERGES``, an unsupported key type, or no bucket.
    """
    _free(table, keys, (TILE_DAY, TILE_START, *(name for name, _, _ in partials)))
    for name, kind in keys.items():
        if not kind.is_key:
            raise DefinitionError(f"table {table!r}: the key {name!r} cannot be {kind!r}")
    if buckets < 1:
        raise DefinitionError(f"table {table!r}: {buckets} buckets; expected at least 1")
    merges: dict[str, str] = {}
    for name, _, merge in partials:
        if merge not in MERGES:
            raise DefinitionError(
                f"table {table!r}: the column {name!r} is merged by {merge!r}; "
                f"expected one of: {', '.join(MERGES)}"
            )
        merges[f"fields.{name}.aggregate-function"] = merge
        if merge == "listagg":
            merges[f"fields.{name}.list-agg-delimiter"] = DELIMITER
    return TableSpec(
        table,
        {TILE_DAY: Int32, **keys, TILE_START: Int64, **{n: kind for n, kind, _ in partials}},
        primary_key=(TILE_DAY, *keys, TILE_START),
        partition_by=(TILE_DAY,),
        options={
            **TABLE_OPTIONS,
            **HOURLY_TAGS,
            **_partition_options(None if partition_days == 1 else partition_days),
            "merge-engine": "aggregation",
            **merges,
            "bucket": str(buckets),
            # a table without keys has one bucket
            **({"bucket-key": ",".join(keys)} if keys else {}),
            "changelog-producer": "none",
            **(_TILES_WITH_LISTS if "listagg" in merges.values() else _FAST_TILES),
        },
    )


def skipped_spec(table: str) -> TableSpec:
    """Return the number of rows skipped by a view, per day and reason: an aggregation table of
    sums."""
    return TableSpec(
        table,
        {TILE_DAY: Int32, "reason": String, "detail": String, "p_rows": Int64},
        primary_key=(TILE_DAY, "reason", "detail"),
        options={
            **TABLE_OPTIONS,
            "merge-engine": "aggregation",
            "fields.p_rows.aggregate-function": "sum",
            "bucket": "1",
            "changelog-producer": "none",
            "local-merge-buffer-size": "4 mb",
        },
    )


def training_spec(
    table: str, columns: Mapping[str, DataType], properties: Mapping[str, str] | None = None
) -> TableSpec:
    """Return an append table of training rows; ``properties`` record its sources."""
    return TableSpec(table, dict(columns), options={**TABLE_OPTIONS, **(properties or {})})


def features_spec(
    table: str,
    columns: Mapping[str, DataType],
    keys: Sequence[str],
    start: str,
    buckets: int,
    properties: Mapping[str, str] | None = None,
) -> TableSpec:
    """Return the table of a derived view: one row per entity and window start.

    ``columns`` are those of its rows, ``keys`` the entity's among them. It is partitioned by the
    day
    of the start (UTC), because a refresh replaces days.
    """
    _free(table, columns, (START_DAY,))
    return TableSpec(
        table,
        {START_DAY: Int32, **columns},
        primary_key=(START_DAY, *keys, start),
        partition_by=(START_DAY,),
        options={
            **TABLE_OPTIONS,
            "merge-engine": "deduplicate",
            "bucket": str(buckets),
            "bucket-key": ",".join(keys),
            "changelog-producer": "none",
            **(properties or {}),
        },
    )


def feedback_spec(
    table: str,
    sample_keys: Mapping[str, DataType],
    extra: Mapping[str, DataType] | None = None,
) -> TableSpec:
    """Return an append table of per-sample training feedback; ``extra`` are additional columns."""
    _free(table, {**sample_keys, **(extra or {})}, tuple(FEEDBACK_COLUMNS))
    return TableSpec(
        table, {**sample_keys, **FEEDBACK_COLUMNS, **(extra or {})}, options=TABLE_OPTIONS
    )


def served_spec(table: str) -> TableSpec:
    """Return an append table of sampled replies, one partition per day of the reply (UTC)."""
    return _of_replies(table, {**SERVED_COLUMNS, SPOOL_FILE: String})


def predictions_spec(table: str) -> TableSpec:
    """Return an append table of logged predictions, one partition per day of the reply (UTC)."""
    return _of_replies(table, {**PREDICTION_COLUMNS, SPOOL_FILE: String})


def outcomes_spec(table: str, keys: Mapping[str, DataType]) -> TableSpec:
    """Return an append table of predictions with their outcomes, one partition per day of the
    reply.

    ``keys`` are the entity keys of the model; rows can be labelled examples of a training set.
    """
    _free(table, keys, (SERVED_DAY, *OUTCOME_COLUMNS))
    return _of_replies(table, {**keys, **OUTCOME_COLUMNS})


def _of_replies(table: str, columns: Mapping[str, DataType]) -> TableSpec:
    columns = {SERVED_DAY: Int32, **columns}
    return TableSpec(table, columns, partition_by=(SERVED_DAY,), options=TABLE_OPTIONS)


def fitted_spec(table: str) -> TableSpec:
    """Return the append table of a fitted transformer: one row per version, its parameters as JSON.

    ``fitted_on`` (JSON) identifies the data that it was fitted on, ``rows`` their number.
    """
    columns = {
        "version": Int32,
        "kind": String,
        "params": String,
        "fitted_on": String,
        "rows": Int64,
        "fitted_at_ms": Int64,
        "digest": String,
    }
    return TableSpec(table, columns, options=TABLE_OPTIONS)


def models_spec(table: str) -> TableSpec:
    """Return the append table of a model: its manifests, states and files.

    A ``manifest`` and the ``states`` are JSON, in ``document``; ``serial`` counts the changes of
    the states. A ``file`` is named by its SHA-256, and ``data`` is one of its parts.
    """
    columns = {
        FILES_OF: Int32,
        "serial": Int64,
        "kind": String,
        "name": String,
        "part": Int32,
        "document": String,
        "data": Bytes,
        "digest": String,
    }
    return TableSpec(table, columns, partition_by=(FILES_OF,), options=TABLE_OPTIONS)


def registry_spec(table: str = "registry") -> TableSpec:
    """Return the append table of applied definitions: one row per version, its canonical JSON and
    hash."""
    columns = {
        "applied_at_ms": Int64,
        "kind": String,
        "name": String,
        "version": Int32,
        "hash": String,
        "document": String,
    }
    return TableSpec(table, columns, options=TABLE_OPTIONS)
