"""Responses as rows of the request log: exact values as JSON text, entities in clear or hashed.

Values are written as follows: integers, booleans and texts as they are; floats as the shortest text
that reads back to the same bits; decimals and, in hexadecimal digits, bytes as text; dates as
days and timestamps as ms since 1970; lists as arrays, maps as arrays of pairs, in their order.
"""

from __future__ import annotations

import datetime as dt
import decimal
import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paimon_features.core._arrow import pa
from paimon_features.core.columns.column import Column
from paimon_features.core.types.schema import DataType, ListType, MapType, arrow_schema
from paimon_features.core.types.statuses import STATUS_NAMES
from paimon_features.definitions import CompiledView, FeatureRef
from paimon_features.definitions.aggregates.fold import NEVER_MS
from paimon_features.definitions.event_partials import event_columns
from paimon_features.definitions.own_events import RequestEvents
from paimon_features.definitions.selection import Codes
from paimon_features.definitions.served import (
    SERVED_COLUMNS,
    definition_of,
    definition_of_computed,
)
from paimon_features.serving.replies.response import OnlineResponse, ViewProvenance


@functools.cache
def log_schema() -> pa.Schema:
    """Return the Arrow schema of the log's rows."""
    return arrow_schema(SERVED_COLUMNS)


COMPUTED = ""
"""The view's name in the row of values computed for an entity: interactions, and
transformed features."""


class EntityText:
    """Entities as text: canonical JSON of the key values, or a keyed hash of that.

    A hash starts with digits that identify its salt without revealing it.

    >>> EntityText()([7, "a"])
    '[7,"a"]'
    >>> hashed = EntityText(b"a secret of some length")
    >>> hashed([7, "a"]) == hashed([7, "a"]), hashed([7, "a"])[:15]
    (True, 'blake2:161fbb53')
    """

    def __init__(self, salt: bytes | None = None) -> None:
        self._key = None if salt is None else hashlib.blake2b(salt, digest_size=32).digest()
        self.prefix = ""
        """The prefix of all hashes with this salt."""
        if self._key is not None:
            self.prefix = f"blake2:{self._digest(b'which salt', 4)}:"

    def __call__(self, keys: Sequence[Any]) -> str:
        """Return the text of one entity, from its keys in the order of the view's."""
        text = dumps(list(keys))
        if self._key is None:
            return text
        return f"{self.prefix}{self._digest(text.encode(), 16)}"

    def _digest(self, data: bytes, size: int) -> str:
        assert self._key is not None
        return hashlib.blake2b(data, digest_size=size, key=self._key).hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class SampledReply:
    """A sampled response until it is written: the ``number``-th of its worker.

    ``rows`` are the chosen rows of the response; they become ``count`` rows of the log.
    """

    request_id: str
    number: int
    service: str
    served_at_ms: int
    response: OnlineResponse
    rows: Sequence[int]
    count: int


class LogRowBuilder:
    """Builds rows of the log from responses; one builder for a project and a worker."""

    def __init__(self, project: str, worker: str, entities: EntityText) -> None:
        self._project = project
        self._worker = worker
        self._entity = entities
        self._definitions: dict[tuple[int, tuple[str, ...], bool], tuple[CompiledView, str]] = {}

    def rows(self, noted: SampledReply) -> list[dict[str, Any]]:
        """Return the rows of one response, in the order of its entities."""
        response, batch = noted.response, noted.response.batch
        chosen = [response.start + row for row in noted.rows]
        keys = {
            name: plain(kind, [response.keys[name][row] for row in noted.rows])
            for name, kind in batch.key_types.items()
        }
        common = {
            "request_id": noted.request_id,
            "number": noted.number,
            "served_at_ms": noted.served_at_ms,
            "as_of_ms": batch.as_of_ms,
            "service": noted.service,
            "project": self._project,
            "worker": self._worker,
        }
        out: list[dict[str, Any]] = []
        for read in batch.reads.values():
            out += self._of_view(common, noted, read, chosen, keys)
        if batch.selection.computed:
            out += self._of_computed(common, noted, chosen, keys)
        return out

    def _of_view(
        self,
        common: Mapping[str, Any],
        noted: SampledReply,
        read: ViewProvenance,
        chosen: Sequence[int],
        keys: Mapping[str, Sequence[Any]],
    ) -> list[dict[str, Any]]:
        view, names = read.view, tuple(read.values)
        types = {f.name: f.type for f in view.features}
        values = [_chosen(types[name], read.values[name], chosen) for name in names]
        # the features of a view share arrays of codes
        shared = {id(of): _names_of(of, chosen) for of in read.codes.values()}
        codes = [shared[id(read.codes[name])] for name in names]
        with_event = read.events is not None
        definition = self._definition(view, names, with_event)
        inputs = self._events_of(view, read.events, chosen)
        out = []
        for i, at in enumerate(chosen):
            marker, snapshot = read.markers[read.bucket_of[at]], int(read.snapshots[at])
            out.append(
                {
                    **common,
                    "view": view.name,
                    "row": noted.rows[i],
                    "entity": self._entity([keys[name][i] for name in view.keys]),
                    "feature_values": dumps(dict(zip(names, [v[i] for v in values], strict=True))),
                    "feature_statuses": dumps(dict(zip(names, [c[i] for c in codes], strict=True))),
                    "inputs": inputs[i],
                    "applied_snapshot": marker.applied_snapshot,
                    "record_snapshot": None if snapshot == NEVER_MS else snapshot,
                    "commit_time_ms": marker.commit_time_ms,
                    "freshness_ms": noted.served_at_ms - marker.current_ms,
                    "epoch": read.epoch,
                    "generation": read.content.generation,
                    "incarnation": read.content.incarnation,
                    "definition": definition,
                }
            )
        return out

    def _of_computed(
        self,
        common: Mapping[str, Any],
        noted: SampledReply,
        chosen: Sequence[int],
        keys: Mapping[str, Sequence[Any]],
    ) -> list[dict[str, Any]]:
        batch = noted.response.batch
        selection = batch.selection
        places = [
            (place, output)
            for place, output in enumerate(selection.outputs)
            if not isinstance(output, FeatureRef)
        ]
        names = [output.name for _, output in places]
        values = [_chosen(o.type, batch.columns[place], chosen) for place, o in places]
        codes = [_names_of(batch.codes[place], chosen) for place, _ in places]
        inputs = {
            name: _chosen(selection.inputs[name], column, chosen)
            for name, column in batch.inputs.items()
        }
        definition = definition_of_computed([output for _, output in places])
        return [
            {
                **common,
                "view": COMPUTED,
                "row": row,
                "entity": self._entity([of[i] for of in keys.values()]),
                "feature_values": dumps(dict(zip(names, [v[i] for v in values], strict=True))),
                "feature_statuses": dumps(dict(zip(names, [c[i] for c in codes], strict=True))),
                "inputs": dumps({name: of[i] for name, of in inputs.items()}),
                "definition": definition,
            }
            for i, row in enumerate(noted.rows)
        ]

    def _events_of(
        self, view: CompiledView, events: RequestEvents | None, chosen: Sequence[int]
    ) -> list[str | None]:
        """Return the columns of each event that the view uses, without its keys and time, which the
        row has. Where entities are hashed, the keys of other views are left out, too."""
        if events is None:
            return [None] * len(chosen)
        hidden = {*view.keys, events.source.event_time}
        if self._entity.prefix:
            hidden |= {*events.reads.keys.values()}
        schema = view.source.schema
        columns = {
            name: _chosen(schema[name], events.columns[name], chosen)
            for name in event_columns(view)
            if name not in hidden
        }
        rows = [{name: of[i] for name, of in columns.items()} for i in range(len(chosen))]
        return [_finite_text(row) for row in rows]

    def _definition(self, view: CompiledView, names: tuple[str, ...], with_event: bool) -> str:
        # by identity, which is unique while the cache keeps a reference to the view
        cached = self._definitions.get((id(view), names, with_event))
        if cached is None:
            if len(self._definitions) >= 1_000:
                self._definitions.clear()
            definition = definition_of(view, names, with_event=with_event)
            cached = self._definitions[id(view), names, with_event] = view, definition
        return cached[1]


def _finite_text(columns: Mapping[str, Any]) -> str | None:
    """Return the columns of an event; None where a number in a list is not finite."""
    try:
        return dumps(columns)
    except ValueError:
        return None


_DAY_0, _TIME_0 = dt.date(1970, 1, 1), dt.datetime(1970, 1, 1)
_MS = dt.timedelta(milliseconds=1)


def plain(kind: DataType, values: Sequence[Any]) -> list[Any]:
    """Return values that ``dumps`` can write: dates as days, times as milliseconds."""
    if kind.text == "date":
        return [None if value is None else (value - _DAY_0).days for value in values]
    if kind.text == "timestamp":
        return [None if value is None else (value - _TIME_0) // _MS for value in values]
    return list(values)


def loads(kind: DataType, value: Any) -> Any:
    """Return the value that ``dumps`` wrote, from parsed JSON and its type."""
    if value is None:
        return None
    if kind.is_decimal:
        return decimal.Decimal(value)
    if kind.text == "bytes":
        return bytes.fromhex(value)
    if isinstance(kind, MapType):
        return [(key, loads(kind.item, item)) for key, item in value]
    if isinstance(kind, ListType):
        return [loads(kind.item, item) for item in value]
    return value


def _chosen(kind: DataType, column: Column, rows: Sequence[int]) -> list[Any]:
    first, count = rows[0], len(rows)
    if rows[-1] - first == count - 1:  # ascending: all rows of most responses; no copy
        return plain(kind, column.part(slice(first, first + count)).to_pylist(kind))
    return plain(kind, column.take(np.array(rows, np.int64)).to_pylist(kind))


def _names_of(codes: Codes, rows: Sequence[int]) -> list[str]:
    return [STATUS_NAMES[int(codes[row])] for row in rows]


def _as_text(value: object) -> object:
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dt.datetime):  # in a list
        return (value.replace(tzinfo=None) - _TIME_0) // _MS
    if isinstance(value, dt.date):
        return (value - _DAY_0).days
    raise TypeError(f"{type(value).__name__} is not a feature type")


# made once: json.dumps would make one for each value
dumps = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_as_text
).encode
"""Returns canonical JSON text; ValueError for a number that is not finite."""
