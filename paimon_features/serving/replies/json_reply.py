"""Replies in JSON as Feast's feature servers write them.

Responses of one batch share their columns. So a column is encoded once for the batch, and each
reply is joined from its parts.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from paimon_features.core.native import CORE
from paimon_features.core.types.array_types import Ints
from paimon_features.core.types.schema import DataType
from paimon_features.core.types.statuses import FEAST_STATUS, STATUS_NAMES, Status
from paimon_features.definitions import FeatureRef, Selection
from paimon_features.definitions.aggregates.fold import NEVER_MS
from paimon_features.definitions.selection import Codes, all_present
from paimon_features.serving.replies.freshness import Freshness
from paimon_features.serving.replies.plain_values import plain_column, plain_values
from paimon_features.serving.replies.response import OnlineResponse, ResultBatch

SAYS_MORE = (Status.STALE, Status.ILL_CONDITIONED)
"""The statuses that say more than Feast has a word for."""

_encode = msgspec.json.Encoder().encode
_FEAST_NAMES = np.array([FEAST_STATUS[status] for status in Status], np.object_)
_OWN_NAMES = np.array(STATUS_NAMES, np.object_)
_SAYS_MORE = np.array([status in SAYS_MORE for status in Status])
NUMBERS = {("int64", "l"): 0, ("int64", "q"): 0, ("float64", "d"): 1}
"""Types that are numbers of eight bytes, with NumPy's character, as the native core knows them."""
_WRITTEN = 2
_MOST_ENDINGS = 256
_NEVER = b'"1970-01-01T00:00:00Z"'
"""The time of an event that never was: Feast's servers write it, and its clients expect a time."""


def feast_json(response: OnlineResponse, full_feature_names: bool = False) -> bytes:
    """Return the reply of a Feast feature server (0.67), column by column.

    ``results`` has one entry per name in ``metadata.feature_names``: the entity keys first (all
    PRESENT), then the features, with ``full_feature_names`` as ``<view>__<feature>``. Beyond what
    Feast writes, ``metadata`` has ``as_of_ms`` and ``freshness`` (per view: ``applied_snapshot``
    and
    the other fields of ``Freshness``), and a result has ``detailed_statuses``, our own names,
    where they say more than Feast's: STALE, and ILL_CONDITIONED. A read with an event has
    ``own_event`` in ``metadata``, how each view of its source handles it, and ``entity_keys``.

    The event time of an interaction is the newest of its views. Of an entity key, and of an entity
    without events, it is 1970-01-01, as Feast has it.
    """
    text = response.json(full_feature_names)
    if text is not None:
        return text
    batch = response.batch
    parts: _JsonColumns | None = batch.rendered.get(_JsonColumns)
    if parts is None:
        parts = batch.rendered[_JsonColumns] = _JsonColumns(batch)
    names = names_json(batch.selection, tuple(batch.key_types), full_feature_names)
    fresh = b",".join([freshness_json(view, of) for view, of in response.freshness.items()])
    own_event = b""
    if response.own_event is not None:
        entity_keys = _encode([*batch.key_types])
        own_event = b',"entity_keys":%b,"own_event":%b' % (entity_keys, _encode(response.own_event))
    opening = (
        b'{"metadata":{"feature_names":%b,"as_of_ms":%d,"freshness":{%b}%b},"results":[{"values":'
    )
    keys = b'},{"values":'.join(_keys_json(response))
    return parts.results(
        b"%b%b" % (opening % (names, batch.as_of_ms, fresh, own_event), keys), response
    )


def feature_names(selection: Selection, full: bool) -> list[str]:
    """Return what the features are called; ``full`` puts ``<view>__`` before those of a view."""
    if not full:
        return list(selection.names)
    return [
        f"{output.view}__{output.feature}" if isinstance(output, FeatureRef) else output.name
        for output in selection.outputs
    ]


@functools.lru_cache(maxsize=512)
def names_json(selection: Selection, keys: tuple[str, ...], full: bool) -> bytes:
    """Return the names of a reply's results."""
    return _encode([*keys, *feature_names(selection, full)])


@functools.lru_cache(maxsize=1024)
def freshness_json(view: str, freshness: Freshness) -> bytes:
    """Return a member of a reply's freshness."""
    return b"%b:%b" % (_encode(view), _encode(asdict(freshness)))


def _keys_json(response: OnlineResponse) -> list[bytes]:
    """Return the results of the entity keys."""
    count = len(response)
    if count == 1:
        ending = KEY_ENDING
    else:
        ending = b',"statuses":%b,"event_timestamps":%b' % (
            all_present_json(count),
            no_times_json(count),
        )
    key_types = response.batch.key_types
    return [_encode(_plain_keys(response, name)) + ending for name in key_types]


class _JsonColumns:
    """The columns of a batch.

    A result is the text between ``{"values":`` and ``}``: the values and the ending, which is
    the same for all features of equal statuses and event times. Numbers are written by the native
    core, everything else by msgspec, which also is the reference.
    """

    def __init__(self, batch: ResultBatch) -> None:
        # not the batch itself, which refers to this: a cycle would keep all that was read until the
        # next garbage collection
        self._key_types, self._types, self._columns = batch.key_types, batch.types, batch.columns
        groups: dict[tuple[int, int], int] = {}
        self._group_of: list[int] = []
        """Which ending each output has."""
        self._endings: list[_Endings] = []
        if len(set(map(id, batch.codes))) == len(set(map(id, batch.times))) == 1:
            # most batches: the features of one view share both
            self._endings.append(_Endings(batch.codes[0], batch.times[0]))
            self._group_of = [0] * len(batch.codes)
            return
        for codes, times in zip(batch.codes, batch.times, strict=True):
            number = groups.setdefault((id(codes), id(times)), len(groups))
            if number == len(self._endings):
                self._endings.append(_Endings(codes, times))
            self._group_of.append(number)

    @cached_property
    def _plain(self) -> list[Sequence[Any]]:
        """The plain values of each column."""
        return [
            plain_column(kind, column, binary=False)
            for kind, column in zip(self._types, self._columns, strict=True)
        ]

    def results(self, opening: bytes, response: OnlineResponse) -> bytes:
        """Return the reply from its opening, which ends with the results of the entity keys."""
        start, stop = response.start, response.stop
        if stop - start == 1:
            endings = [of.of_row[start] for of in self._endings]
        else:
            endings = [of.of_rows(slice(start, stop)) for of in self._endings]
        if CORE is not None and len(endings) <= _MOST_ENDINGS:
            values, valid, contents, groups = self._numbers
            if self._written:
                values = tuple(
                    _encode(self._written[i][start:stop]) if i in self._written else of
                    for i, of in enumerate(values)
                )
            text = CORE.reply_json(
                opening, values, valid, contents, tuple(endings), groups, start, stop
            )
            if text is not None:
                return text
        if stop - start == 1:
            results = [
                b"[%b]%b" % (value, endings[group])
                for value, group in zip(self._values_of_row[start], self._group_of, strict=True)
            ]
        else:
            results = [
                _encode(values[start:stop]) + endings[group]
                for values, group in zip(self._plain, self._group_of, strict=True)
            ]
        return b'%b},{"values":%b}]}' % (opening, b'},{"values":'.join(results))

    @cached_property
    def _numbers(self) -> tuple[tuple[Any, ...], tuple[Any, ...], bytes, bytes]:
        """What the native core takes of the columns: their arrays, those that say which values are
        there, what they contain, and their groups."""
        values: list[Any] = []
        valid: list[Any] = []
        contents = bytearray()
        for kind, column in zip(self._types, self._columns, strict=True):
            content = NUMBERS.get((kind.text, column.values.dtype.char), _WRITTEN)
            contents.append(content)
            is_written = content == _WRITTEN
            values.append(None if is_written else np.ascontiguousarray(column.values))
            missing = is_written or column.valid is None
            valid.append(None if missing else np.ascontiguousarray(column.valid))
        return tuple(values), tuple(valid), bytes(contents), bytes(self._group_of)

    @cached_property
    def _written(self) -> dict[int, Sequence[Any]]:
        """The plain values of the columns that are no numbers of eight bytes."""
        return {
            i: plain_column(self._types[i], self._columns[i], binary=False)
            for i, content in enumerate(self._numbers[2])
            if content == _WRITTEN
        }

    @cached_property
    def _values_of_row(self) -> list[tuple[bytes, ...]]:
        """The values of each row, one text per output."""
        if len(self._columns[0]) == 1 and all(map(_is_number, self._types)):
            # a row of numbers and nulls is encoded at once: they contain no comma
            row = [
                None if column.valid is not None and not column.valid[0] else column.values.item()
                for column in self._columns
            ]
            return [tuple(_encode(row)[1:-1].split(b","))]
        columns = [
            _apart(_is_number(kind), values)
            for kind, values in zip(self._types, self._plain, strict=True)
        ]
        return list(zip(*columns, strict=True))


@functools.cache
def _is_number(kind: DataType) -> bool:
    """Return True if values are JSON numbers."""
    return kind.is_numeric and not kind.is_decimal


def _apart(numbers: bool, values: Sequence[Any]) -> list[bytes]:
    """Return the JSON of each value.

    Numbers and nulls are encoded at once: they contain no comma.
    """
    if numbers and values:
        return _encode(values)[1:-1].split(b",")
    return [_encode(value) for value in values]


class _Endings:
    """What follows the values of a result: statuses and event times."""

    def __init__(self, codes: Codes, times: Ints) -> None:
        self._codes, self._times = codes, times

    def of_rows(self, part: slice) -> bytes:
        """Return the JSON of a response of some rows."""
        names, detailed = statuses_json(self._codes[part])
        times = times_json(self._times[part])
        return b',"statuses":%b,"event_timestamps":%b%b' % (names, times, detailed)

    @cached_property
    def of_row(self) -> list[bytes]:
        """Of a response of one row, for each row."""
        times = times_json(self._times)[1:-1].split(b",")
        return [
            _ENDINGS[code] % time for code, time in zip(self._codes.tolist(), times, strict=True)
        ]


def statuses_json(codes: Codes) -> tuple[bytes, bytes]:
    """Return the JSON of statuses, and what follows the event times where they say more than
    Feast."""
    if all_present(codes):
        return all_present_json(len(codes)), b""
    detailed = b""
    if _SAYS_MORE[codes].any():
        detailed = b',"detailed_statuses":' + _encode(_OWN_NAMES[codes].tolist())
    return _encode(_FEAST_NAMES[codes].tolist()), detailed


@functools.lru_cache(maxsize=64)
def all_present_json(count: int) -> bytes:
    """Return the statuses of so many values that are PRESENT, as most are."""
    return _encode(["PRESENT"] * count)


@functools.lru_cache(maxsize=64)
def no_times_json(count: int) -> bytes:
    """Return the event times of so many entity keys."""
    return b"[%b]" % b",".join([_NEVER] * count)


def _ending_of(status: Status) -> bytes:
    detailed = f',"detailed_statuses":["{status.name}"]' if status in SAYS_MORE else ""
    return f',"statuses":["{FEAST_STATUS[status]}"],"event_timestamps":[%b]{detailed}'.encode()


_ENDINGS = [_ending_of(status) for status in Status]
KEY_ENDING = _ENDINGS[Status.PRESENT] % _NEVER


def times_json(times_ms: Ints) -> bytes:
    """Return a JSON array of times as Feast writes them; NEVER_MS is 1970.

    >>> times_json(np.array([1_700_000_000_000, NEVER_MS, -1]))
    b'["2023-11-14T22:13:20Z","1970-01-01T00:00:00Z","1969-12-31T23:59:59.999Z"]'
    """
    if CORE is not None and times_ms.flags.c_contiguous:
        try:
            return CORE.times_json(times_ms)
        except ValueError:
            pass  # not within the years 1 to 9999: the error is that of datetime
    if not len(times_ms):
        return b"[]"
    moments = np.where(times_ms == NEVER_MS, 0, times_ms).astype("datetime64[ms]").tolist()
    # without a zone and with all six digits of a second; no other text is in there
    texts: bytes = _encode(moments)
    return texts.replace(b'",', b'Z",').replace(b'"]', b'Z"]').replace(b'000Z"', b'Z"')


def _plain_keys(response: OnlineResponse, name: str) -> Sequence[Any]:
    return plain_values(response.batch.key_types[name], response.keys[name], binary=False)
