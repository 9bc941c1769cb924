"""Training sets: historical features, written as a table that says what it was made from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from paimon_features.core.documents.published_document import document_digest
from paimon_features.core.errors import RequestError, TableError, UnknownNameError, unknown_name
from paimon_features.core.process.callbacks import OnProgress
from paimon_features.core.types.schema import (
    Bool,
    Bytes,
    DataType,
    Date,
    Decimal,
    Float32,
    Float64,
    Int32,
    Int64,
    List,
    Map,
    String,
    Timestamp,
    check_name,
)
from paimon_features.definitions import CompiledTransformed, Output
from paimon_features.definitions.own_events import EventReads
from paimon_features.definitions.value_definition import value_definition
from paimon_features.lake import Lake, append_stream, latest_snapshot, table_options
from paimon_features.lake.metadata.snapshots import snapshots
from paimon_features.lake.metadata.tags import create_tag, delete_tag, training_tag, training_tags
from paimon_features.lake.ownership.lease import acquire
from paimon_features.lake.specs import TRAINING_PREFIX, TRAINING_VALUES, training_spec
from paimon_features.lake.table_options import PROPERTY_PREFIX
from paimon_features.lake.writing.table_writer import committed_snapshot
from paimon_features.offline.feature_result import FeatureResult
from paimon_features.offline.inputs.row_source import RowSource, in_pieces, row_source
from paimon_features.offline.reading.engine import OfflineEngine
from paimon_features.offline.reading.entity_rows import EntityRows
from paimon_features.offline.store import AsOf, OfflineStore, Pin, PinnedRead

ROWS_WITHOUT_FEATURES = "training-set.rows-without-features"
"""Property: the number of rows of which no feature has a value."""
COMMITS_NOT_INCLUDED = "training-set.commits-not-included"
"""Property: commits of events that a view's tiles did not contain yet, by view, as JSON."""
IDENTITY = "training-set.identity"
"""Property that identifies a training set: a hash of everything that its content depends on."""
WRITTEN_ROWS = 1 << 16
"""Rows that are handed to the table at a time."""


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """A written training set: the table, its snapshot, and what was read for it.

    ``rows_without_features`` counts the rows of which no feature has a value: a null key, an
    entity that was not known (or had expired) at that time, or nothing but empty windows.
    ``commits_not_included`` counts, by view, the commits of events that were in no feature, because
    the view's job had not read them when the rows were written.
    """

    table: str
    snapshot_id: int
    rows: int
    rows_without_features: int
    features: tuple[str, ...]
    label: str | None
    sources: tuple[Pin, ...]
    commits_not_included: Mapping[str, int] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        from paimon_features.core.notebook.markup import card, facts, table

        about = {
            "rows": self.rows,
            "of these without features": self.rows_without_features or None,
            "label": self.label,
            "commits of events not included": sum(self.commits_not_included.values()) or None,
            "snapshot": str(self.snapshot_id),
            "features": ", ".join(self.features),
        }
        sources = table(((pin.table, str(pin.snapshot_id)) for pin in self.sources),
                        ("read", "at snapshot"))  # fmt: skip
        return card(f"Training set {self.table}", facts(about), sources)

    def to_document(self) -> dict[str, object]:
        """Return as JSON, for a program."""
        return {
            "table": self.table,
            "snapshot_id": self.snapshot_id,
            "rows": self.rows,
            "rows_without_features": self.rows_without_features,
            "features": list(self.features),
            "label": self.label,
            "sources": [pin.to_document() for pin in self.sources],
            "commits_not_included": dict(self.commits_not_included),
        }


def build_training_set(
    store: OfflineStore,
    name: str,
    refs: Sequence[Output],
    rows: Any,
    *,
    label: str | None = None,
    as_of: AsOf = None,
    replace: bool = False,
    progress: OnProgress | None = None,
    memory_mb: float | None = None,
    spill_folder: str | None = None,
    engine: OfflineEngine | None = None,
) -> TrainingSet:
    """Write the historical features of ``rows`` as the table ``training_<name>``.

    The table has the columns of ``rows`` (keys, time, label, anything else), then the features;
    its rows come in the order given. Its properties name the features with a hash of their
    definitions, the interactions with their expressions, the versions of fitted transformers,
    every source table with its snapshot and commit, the label, ``as_of``, and the number of commits
    of events that a view's tiles did not contain yet. The snapshots that were read are tagged
    ``training_<name>``, so that they stay readable.

    The same call on the same snapshots is the same training set: it is not built again, and keeps
    the rows that ``append_training_rows`` has added. On
    another ``engine`` it is another one, as sums of floats may differ in their last bits.
    Neither rows nor features have to fit into memory (``memory_mb``, ``spill_folder``).

    Raises
    ------
    TableError
        If a training set of this name was made from something else and ``replace`` is false.
    OwnershipError
        If another process is writing it.
    RequestError, UnknownNameError, GenerationError, SnapshotExpiredError
        As ``OfflineStore.get_historical_features``; also where the label is no column of
        ``rows``, or there are no rows.
    """
    check_name("training set", name)
    pinned = store.pin(refs, as_of=as_of, repeatable=True)
    lake, target = store.lake, TRAINING_PREFIX + name
    source = row_source(rows, lake)
    _check_label(source.schema, label)
    limits: dict[str, Any] = {"memory_mb": memory_mb, "spill_folder": spill_folder}
    with pinned.check_rows(source, hashed=True, **limits) as entity_rows:
        if not entity_rows.count:
            raise RequestError("a training set needs entity rows; got none")
        properties = _properties(pinned, entity_rows, label, engine)
        features = tuple(pinned.columns.values())
        with acquire(lake, target, purpose="build a training set"):
            snapshot_id = _known_snapshot(lake, target, properties)
            if snapshot_id is None:
                exists = lake.exists(target)
                if exists and not replace and _is_complete(lake, target):
                    raise TableError(_refusal(lake, target, properties))
                _protect(lake, target, pinned.pins)
                with pinned.join(entity_rows, progress=progress, engine=engine, **limits) as result:
                    if exists:  # only now: a read that fails leaves the old table as it is
                        _drop(lake, target, pinned.pins)
                    notes = {
                        COMMITS_NOT_INCLUDED: _json(pinned.not_included),
                        TRAINING_VALUES: _json(_values(pinned, source.event_reads)),
                    }
                    snapshot_id = _write(lake, target, result, {**properties, **notes})
            stored = table_options.properties(lake, target)
        return TrainingSet(
            target, snapshot_id, entity_rows.count, int(stored[ROWS_WITHOUT_FEATURES]), features,
            label, pinned.pins, json.loads(stored.get(COMMITS_NOT_INCLUDED, "{}")),
        )  # fmt: skip


def append_training_rows(
    store: OfflineStore,
    name: str,
    refs: Sequence[Output],
    rows: Any,
    *,
    as_of: AsOf = None,
    progress: OnProgress | None = None,
    memory_mb: float | None = None,
    spill_folder: str | None = None,
    engine: OfflineEngine | None = None,
) -> TrainingSet:
    """Append more ``rows`` with their historical features to a training set, in one commit.

    ``refs`` are those that it was built with. The rows have its columns; missing ones are null. The
    same rows are appended once, whatever was appended since. The commit has the snapshots that were
    read as its property ``training-set.sources``; earlier snapshots of the table stay as they are.

    Returns the appended rows as a training set: their snapshot and number.

    Raises
    ------
    UnknownNameError
        If there is no such training set.
    TableError
        If it was not built with these features, as they are defined now.
    OwnershipError, RequestError, GenerationError, SnapshotExpiredError
        As ``build_training_set``.
    """
    lake, target = store.lake, TRAINING_PREFIX + name
    pins_of(lake, name)  # UnknownNameError
    pinned = store.pin(refs, as_of=as_of, repeatable=True)
    source = row_source(rows, lake)
    stored = table_options.properties(lake, target)
    _check_appended(lake, target, pinned, source)
    label, features = stored.get("training-set.label"), tuple(pinned.columns.values())
    limits: dict[str, Any] = {"memory_mb": memory_mb, "spill_folder": spill_folder}
    with pinned.check_rows(source, hashed=True, **limits) as entity_rows:
        if not entity_rows.count:
            raise RequestError("got no entity rows to append")
        user = f"training-rows-{entity_rows.digest}"
        with acquire(lake, target, purpose="append to a training set"):
            earlier_id = committed_snapshot(lake, target, user)
            if earlier_id is not None:
                return TrainingSet(
                    target, earlier_id, entity_rows.count, 0, features, label, pinned.pins,
                    _not_included(lake, target, earlier_id),
                )  # fmt: skip
            with pinned.join(entity_rows, progress=progress, engine=engine, **limits) as result:
                pieces = _CountedPieces(result)
                snapshot_id = append_stream(
                    lake, target, pieces, commit_user=user,
                    properties={
                        "training-set.sources": _json([pin.to_document() for pin in pinned.pins]),
                        COMMITS_NOT_INCLUDED: _json(pinned.not_included),
                    },
                )  # fmt: skip
        return TrainingSet(
            target, snapshot_id, entity_rows.count, pieces.without_features, features, label,
            pinned.pins, pinned.not_included,
        )  # fmt: skip


def _not_included(lake: Lake, target: str, snapshot_id: int) -> dict[str, int]:
    """Return the commits that appended rows lack, by view.

    Empty once their snapshot has expired.
    """
    retained = (snapshot for snapshot in snapshots(lake, target) if snapshot.id == snapshot_id)
    properties = next((snapshot.properties for snapshot in retained), {})
    counts: dict[str, int] = json.loads(properties.get(COMMITS_NOT_INCLUDED, "{}"))
    return counts


def _check_appended(lake: Lake, target: str, pinned: PinnedRead, rows: RowSource) -> None:
    stored = table_options.properties(lake, target)
    built = json.loads(stored.get("training-set.features", "{}"))
    now = {str(ref): column for ref, column in pinned.columns.items()}
    definitions = document_digest(pinned.definitions(rows.event_reads))
    same = stored.get("training-set.definitions") == definitions and all(
        json.loads(stored.get(key, "null")) == (document or None)
        for key, document in _computed(pinned).items()
    )
    if built != now or not same or not _is_complete(lake, target):
        other = sorted(built.keys() ^ now.keys())
        difference = (
            f"other features: {', '.join(other)}" if other else "features defined otherwise"
        )
        raise TableError(
            f"{target} was built with {difference}; rows are appended with the same ones: name the "
            "same service, or build it again: replace=True, on the command line --replace"
        )
    available = lake.schema(target).names
    for column in rows.schema.names:
        if column not in available:
            problem = unknown_name("column", column, available, f"table {target!r}")
            raise RequestError(f"entity rows: {problem}")


def pins_of(lake: Lake, name: str) -> tuple[Pin, ...]:
    """Return exactly what a training set was made from, to read it again.

    Raises
    ------
    UnknownNameError
        If there is no training set of that name.
    """
    target = TRAINING_PREFIX + name
    if not lake.exists(target):
        tables = [table for table in lake.list() if table.startswith(TRAINING_PREFIX)]
        names = [table.removeprefix(TRAINING_PREFIX) for table in tables]
        raise UnknownNameError.of("training set", name, names)
    documents = json.loads(table_options.properties(lake, target).get("training-set.sources", "[]"))
    return tuple(map(Pin.from_document, documents))


def _write(lake: Lake, target: str, result: FeatureResult, properties: Mapping[str, str]) -> int:
    """Create the table and fill it in one commit; the snapshot id."""
    columns = {field.name: _column_type(field) for field in result.schema}
    options = {PROPERTY_PREFIX + key: value for key, value in properties.items()}
    lake.create(training_spec(target, columns, options))
    pieces = _CountedPieces(result)
    snapshot_id = append_stream(lake, target, pieces)
    # the last thing that is written: a training set that has it is complete
    without = str(pieces.without_features)
    table_options.set_properties(lake, target, {ROWS_WITHOUT_FEATURES: without})
    return snapshot_id


class _CountedPieces:
    """The rows of a result in pieces of one size, so that memory has no say in how files are
    written; ``without_features`` counts those that have only nulls."""

    def __init__(self, result: FeatureResult) -> None:
        self._result = result
        self.without_features = 0

    def __iter__(self) -> Iterator[pa.Table]:
        features = list(self._result.selection.columns.values())
        for table in in_pieces(self._result.schema, self._result.tables(), WRITTEN_ROWS):
            empty = np.ones(table.num_rows, np.bool_)
            for column in table.select(features).columns:
                empty &= column.is_null().to_numpy()
            self.without_features += int(empty.sum())
            yield table


def _check_label(rows: pa.Schema, label: str | None) -> None:
    if label is not None and label not in rows.names:
        raise RequestError(f"label: {unknown_name('column', label, rows.names, 'the entity rows')}")


def _properties(
    pinned: PinnedRead, entity_rows: EntityRows, label: str | None, engine: OfflineEngine | None
) -> dict[str, str]:
    """Return what the table says of itself; the last entry is the hash of all others."""
    document: dict[str, Any] = {
        "training-set.features": {str(ref): column for ref, column in pinned.columns.items()},
        "training-set.definitions": document_digest(pinned.definitions(entity_rows.event_reads)),
        **_computed(pinned),
        "training-set.sources": [pin.to_document() for pin in pinned.pins],
        "training-set.as-of-ms": pinned.as_of,
        "training-set.label": label,
        "training-set.entity-rows": entity_rows.digest,
        "training-set.engine": None if engine is None else engine.name,
    }
    texts = {
        key: value if isinstance(value, str) else _json(value)
        for key, value in document.items()
        if value is not None
    }
    return {**texts, IDENTITY: document_digest(texts)}


def _values(pinned: PinnedRead, events: EventReads | None) -> dict[str, str]:
    """Return what the values of each column mean, for what is fitted on them."""
    views = {read.name: read.view for read in pinned.reads}
    request = None if events is None else events.source.name
    return {
        column: value_definition(views, output, request)
        for output, column in pinned.columns.items()
        if not isinstance(output, CompiledTransformed)
    }


def _computed(pinned: PinnedRead) -> dict[str, object]:
    """Return the properties with the definitions of interactions and transformed features, if
    any."""
    selection = pinned.selection
    return {
        "training-set.interactions": {i.name: i.to_document() for i in selection.interactions}
        or None,
        "training-set.transformed": {t.name: t.to_property() for t in selection.transformed}
        or None,
    }


def _json(document: object) -> str:
    return json.dumps(document, separators=(",", ":"))


def _known_snapshot(lake: Lake, target: str, properties: Mapping[str, str]) -> int | None:
    """Return the snapshot of the table if it is this training set, complete."""
    if (
        not lake.exists(target)
        or table_options.properties(lake, target).get(IDENTITY) != properties[IDENTITY]
    ):
        return None
    newest = latest_snapshot(lake, target)
    return newest.id if newest is not None and _is_complete(lake, target) else None


def _is_complete(lake: Lake, target: str) -> bool:
    """Return True if a training set was written to its end."""
    return ROWS_WITHOUT_FEATURES in table_options.properties(lake, target)


def _refusal(lake: Lake, target: str, properties: Mapping[str, str]) -> str:
    stored = table_options.properties(lake, target)
    unnamed = (IDENTITY, ROWS_WITHOUT_FEATURES, COMMITS_NOT_INCLUDED, TRAINING_VALUES)
    reported = [key for key in {**properties, **stored} if key not in unnamed]
    other = [key for key in reported if stored.get(key) != properties.get(key)]
    difference = (
        ", ".join(key.removeprefix("training-set.") for key in other) or "what it was made from"
    )
    return (
        f"table {target!r} contains another training set (different: {difference}); "
        "choose another name, or replace it: replace=True, on the command line --replace"
    )


def _drop(lake: Lake, target: str, pins: Sequence[Pin]) -> None:
    """Drop a training set, and release the sources that its successor does not read."""
    sources = {pin.table for pin in pins_of(lake, target.removeprefix(TRAINING_PREFIX))}
    for source in sources - {pin.table for pin in pins}:
        _release(lake, source, target)
    lake.drop(target, how="replaced")


def _protect(lake: Lake, target: str, pins: Sequence[Pin]) -> None:
    """Tag what is read, before it is read; a tag that a crash left behind is replaced.

    Of an events table several snapshots may be read; all but the first have a numbered tag.
    """
    for table in dict.fromkeys(pin.table for pin in pins):
        _release(lake, table, target)
        table_pins = [pin for pin in pins if pin.table == table and pin.snapshot_id is not None]
        for number, pin in enumerate(table_pins):
            assert pin.snapshot_id is not None
            create_tag(lake, table, training_tag(target, number), pin.snapshot_id)
            pin.check(lake)  # the tag is found by the snapshot's number


def _release(lake: Lake, table: str, target: str) -> None:
    for tag in training_tags(lake, table, target):
        delete_tag(lake, table, tag)


def _column_type(field: pa.Field) -> DataType:
    """Return the column type of the table for a column of the rows."""
    kind = field.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return List(_column_type(kind.value_field))
    if pa.types.is_map(kind):
        return Map(_column_type(kind.key_field), _column_type(kind.item_field))
    if pa.types.is_timestamp(kind):
        return Timestamp
    if pa.types.is_decimal(kind):
        return Decimal(kind.precision, kind.scale)
    for accepts, column_type in (
        (pa.types.is_boolean, Bool),
        (lambda k: pa.types.is_integer(k) and k.bit_width < 32, Int32),
        (pa.types.is_int32, Int32),
        (pa.types.is_integer, Int64),
        (lambda k: pa.types.is_float16(k) or pa.types.is_float32(k), Float32),
        (pa.types.is_float64, Float64),
        (lambda k: pa.types.is_string(k) or pa.types.is_large_string(k), String),
        (lambda k: pa.types.is_binary(k) or pa.types.is_large_binary(k), Bytes),
        (pa.types.is_date, Date),
    ):
        if accepts(kind):
            return column_type
    raise RequestError(
        f"entity rows: the column {field.name!r} is {field.type}, which tables do not support; "
        "leave it out, or convert it to a number, string, date or timestamp"
    )
