"""Arrow types of other programs as types of this project: one function for every entrance.

Polars writes views of strings, pandas large strings and dictionaries, DuckDB and Spark large lists,
others run-end encoded columns, fixed sizes and extension types. Arrow has kernels for few of them
(pyarrow 16 cannot even cast a view), so each entrance converts its columns before anything else.

==============================================  ============================================
given                                           as
==============================================  ============================================
``string_view``, ``large_string``               ``string``
``binary_view``, ``large_binary``, fixed sizes  ``binary``
dictionary, run-end encoded                     their values
``large_list``, lists of a fixed size, views    ``list``
structs and maps                                the same, of converted items
``arrow.json``, ``arrow.fixed_shape_tensor``    their storage
``arrow.bool8``, ``arrow.uuid``                 ``bool``, ``string`` of 36 characters
other extension types, unions, intervals        rejected: they have no meaning here
==============================================  ============================================
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from paimon_features.core._arrow import pa, pc
from paimon_features.core.types.array_types import Ints

EXTENSION_NAME = b"ARROW:extension:name"
"""Metadata of a field whose extension type this process does not know: it is its storage here."""
_STORAGE = frozenset({"arrow.fixed_shape_tensor", "arrow.json"})
"""Extension types whose values mean what their storage means."""
_OWN_MEANING = frozenset({"arrow.bool8", "arrow.uuid"})
_LONGEST = 1 << 31
"""Bytes that offsets of 32 bits count at most."""


# -- what is converted, and what is rejected ------------------------------------------------


def check_foreign_types(schema: pa.Schema) -> None:
    """Raise ArrowInvalid for a column of a type that has no meaning here.

    Examples
    --------
    >>> period = pa.field("t", pa.int64(), metadata={"ARROW:extension:name": "pandas.period"})
    >>> check_foreign_types(pa.schema([period]))
    Traceback (most recent call last):
    pyarrow.lib.ArrowInvalid: column 't' is of the extension type 'pandas.period', whose \
meaning is not known here; convert it (a Period by .dt.to_timestamp())
    """
    for field in schema:
        _check_type(f"column {field.name[:80]!r}", field)


def _check_type(what: str, field: pa.Field) -> None:
    name = _extension(field)
    if name is not None and name not in _STORAGE:
        raise _unknown_extension(what, name)
    if _converters().get(field.type.id) is _reject:
        raise _no_meaning(what, field.type)
    for number in range(field.type.num_fields):
        _check_type(what, field.type.field(number))


def _extension(field: pa.Field) -> str | None:
    """Return the name of a field's extension type, whether this process knows the type or not."""
    kind, stored = field.type, (field.metadata or {}).get(EXTENSION_NAME)
    name = kind.extension_name if isinstance(kind, pa.BaseExtensionType) else None
    return name or (None if stored is None else stored.decode("utf-8", "replace"))


def _unknown_extension(what: str, name: str) -> pa.ArrowInvalid:
    return pa.ArrowInvalid(
        f"{what} is of the extension type {name[:80]!r}, whose meaning is not known here; "
        "convert it (a Period by .dt.to_timestamp())"
    )


def is_plain(kind: pa.DataType) -> bool:
    """Return True if ``plain_array`` returns values of this type as they are.

    >>> is_plain(pa.list_(pa.string())), is_plain(pa.list_(pa.large_string()))
    (True, False)
    """
    if kind.id in _leaves():
        return True
    nested = pa.types.is_list(kind) or pa.types.is_struct(kind) or pa.types.is_map(kind)
    return bool(nested) and all(is_plain(kind.field(n).type) for n in range(kind.num_fields))


@functools.cache
def _leaves() -> frozenset[int]:
    lib = pa.lib
    foreign = {*_converters(), *_ids("LIST", "STRUCT", "MAP", "EXTENSION")}
    names = [name for name in dir(lib) if name.startswith("Type_")]
    # the identifier of extension types has no name in pyarrow
    extension = 31
    return frozenset(getattr(lib, name) for name in names) - foreign - {extension}


def _ids(*names: str) -> set[int]:
    """Return the identifiers of types, of those that this version of pyarrow has."""
    ids = (getattr(pa.lib, f"Type_{name}", None) for name in names)
    return {id_ for id_ in ids if id_ is not None}


# -- conversion -----------------------------------------------------------------------------


def plain_array(array: pa.Array) -> pa.Array:
    """Return values of a type of another program as one of this project; see the module.

    All other types stay as they are: ``times.conform`` decides which of them a column accepts.

    Raises
    ------
    pyarrow.ArrowInvalid
        For a union, an interval, an extension type that is not known here, and for more than
        2 GiB of text or items (``plain_column`` divides them into chunks).

    Examples
    --------
    >>> plain_array(pa.array(["a", "b", "a"]).dictionary_encode()).to_pylist()
    ['a', 'b', 'a']
    >>> plain_array(pa.array([[b"ab"], None], pa.large_list(pa.binary(2)))).type
    ListType(list<item: binary>)
    """
    kind = array.type
    if is_plain(kind):
        return array
    if isinstance(kind, pa.BaseExtensionType):
        return _of_extension(array.storage, kind.extension_name)
    if kind.id in _views():
        array.validate(full=True)  # a wrong place would be read from anywhere in memory
    return _converters().get(kind.id, _of_list)(array)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of ``plain_array`` of values of a type; the type itself if they are rejected.

    >>> plain_type(pa.dictionary(pa.int8(), pa.large_string()))
    DataType(string)
    """
    return plain_schema(pa.schema([("", kind)])).types[0]


def plain_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return as ``plain_array``, chunk by chunk; a chunk beyond 2 GiB becomes several.

    Raises
    ------
    pyarrow.ArrowInvalid
        As ``plain_array``.
    """
    if is_plain(column.type):
        return column
    return _chunked(column, plain_array)


def plain_table(table: pa.Table, *, only_views: bool = False) -> pa.Table:
    """Return the table with converted columns; those that are rejected stay, and reading them
    fails.

    ``only_views`` converts only types without kernels, for columns that are passed on.

    >>> plain_table(pa.table({"k": pa.array(["a"], pa.large_string())})).schema.types
    [DataType(string)]
    """
    if all(is_plain(field.type) and not field.metadata for field in table.schema):
        return table
    fields, columns = [], []
    for field, column in zip(table.schema, table.columns, strict=True):
        converted = _of_field(field, column, only_views)
        fields.append(
            field if converted is column else pa.field(field.name, converted.type, field.nullable)
        )
        columns.append(converted)
    return pa.Table.from_arrays(columns, schema=pa.schema(fields, table.schema.metadata))


def plain_batches(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """Return as ``plain_table``, for a batch; several where its texts do not fit into one."""
    if all(is_plain(field.type) and not field.metadata for field in batch.schema):
        return [batch]
    batches: list[pa.RecordBatch] = plain_table(pa.Table.from_batches([batch])).to_batches()
    return batches


def plain_schema(schema: pa.Schema, *, only_views: bool = False) -> pa.Schema:
    """Return the schema of ``plain_table`` of a table with this schema."""
    columns = [pa.chunked_array([pa.nulls(0, field.type)]) for field in schema]
    table = pa.Table.from_arrays(columns, schema=schema)
    return plain_table(table, only_views=only_views).schema


def _of_field(field: pa.Field, column: pa.ChunkedArray, only_views: bool) -> pa.ChunkedArray:
    name = None if isinstance(field.type, pa.BaseExtensionType) else _extension(field)
    if name is not None and name not in _STORAGE:
        if name not in _OWN_MEANING:  # its integers would be taken for what they are not
            kind = _unknown_type()(column.type, name)
            return _chunked(column, lambda chunk: pa.ExtensionArray.from_storage(kind, chunk))
        return _chunked(column, lambda chunk: _of_extension(chunk, name))
    if only_views and not _has_views(column.type):
        return column
    try:
        return plain_column(column)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return column


@functools.cache
def _views() -> set[int]:
    """Return types with few kernels in pyarrow, not even ``take``, and which point anywhere."""
    return _ids("STRING_VIEW", "BINARY_VIEW", "LIST_VIEW", "LARGE_LIST_VIEW", "RUN_END_ENCODED")


def _has_views(kind: pa.DataType) -> bool:
    if kind.id in _views():
        return True
    inner = [kind.value_type] if pa.types.is_dictionary(kind) else []
    inner += [kind.field(number).type for number in range(kind.num_fields)]
    return any(map(_has_views, inner))


def _chunked(column: pa.ChunkedArray, convert: Callable[[pa.Array], pa.Array]) -> pa.ChunkedArray:
    empty = convert(pa.nulls(0, column.type))
    chunks = [part for chunk in column.chunks for part in _parts(chunk, convert)]
    return pa.chunked_array(chunks, empty.type)


def _parts(chunk: pa.Array, convert: Callable[[pa.Array], pa.Array]) -> list[pa.Array]:
    try:
        return [convert(chunk)]
    except pa.ArrowInvalid:
        if len(chunk) < 2 or chunk.nbytes < _LONGEST:
            raise
    middle = len(chunk) // 2
    halves = chunk.slice(0, middle), chunk.slice(middle)
    return [part for half in halves for part in _parts(half, convert)]


# -- one function for each kind of type -----------------------------------------------------


@functools.cache
def _converters() -> Mapping[int, Callable[[pa.Array], pa.Array]]:
    by_name: dict[str, Callable[[pa.Array], pa.Array]] = {
        "DICTIONARY": lambda array: plain_array(array.dictionary).take(array.indices),
        "RUN_END_ENCODED": _of_runs,
        "LARGE_STRING": lambda array: array.cast(pa.string()),
        "LARGE_BINARY": lambda array: array.cast(pa.binary()),
        "FIXED_SIZE_BINARY": lambda array: array.cast(pa.binary()),
        "STRING_VIEW": lambda array: _of_views(array, pa.string()),
        "BINARY_VIEW": lambda array: _of_views(array, pa.binary()),
        "LARGE_LIST": _of_list,
        "FIXED_SIZE_LIST": _of_list,
        "LIST_VIEW": _of_list_views,
        "LARGE_LIST_VIEW": _of_list_views,
        "STRUCT": _of_struct,
        "MAP": _of_map,
        "DENSE_UNION": _reject,
        "SPARSE_UNION": _reject,
        "INTERVAL_MONTH_DAY_NANO": _reject,
    }
    return {id_: convert for name, convert in by_name.items() for id_ in _ids(name)}


def _reject(array: pa.Array) -> pa.Array:
    raise _no_meaning("the column", array.type)


def _no_meaning(what: str, kind: pa.DataType) -> pa.ArrowInvalid:
    write = "one column for each of its types" if pa.types.is_union(kind) else "milliseconds"
    return pa.ArrowInvalid(f"{what} is {str(kind)[:200]}, which has no type here; write {write}")


def _of_extension(storage: pa.Array, name: str) -> pa.Array:
    if name in _STORAGE:
        return plain_array(storage)
    if name == "arrow.bool8":
        return storage.cast(pa.bool_())
    if name == "arrow.uuid":
        return _uuid_texts(storage)
    raise _unknown_extension("the column", name)


def _uuid_texts(storage: pa.Array) -> pa.Array:
    """Return the 16 bytes of each as hexadecimal digits, in groups of 8, 4, 4, 4 and 12."""
    filled = storage.cast(pa.binary()).fill_null(bytes(16))
    octets = np.frombuffer(b"".join(filled.to_pylist()), np.uint8).reshape(-1, 16)
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    # index: (value, character)
    texts = np.full((len(octets), 36), ord("-"), np.uint8)
    places = [n for n in range(36) if n not in (8, 13, 18, 23)]
    texts[:, places[::2]], texts[:, places[1::2]] = digits[octets >> 4], digits[octets & 15]
    offsets = pa.py_buffer(np.arange(0, 36 * len(texts) + 1, 36, dtype=np.int32))
    joined = pa.StringArray.from_buffers(len(texts), offsets, pa.py_buffer(texts.tobytes()))
    return pc.if_else(storage.is_valid(), joined, pa.scalar(None, pa.string()))


def _of_views(array: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return array.cast(kind)
    except pa.ArrowNotImplementedError:  # pyarrow before 18
        pass
    if not array.null_count < len(array):
        return pa.nulls(len(array), kind)
    values = array.view(pa.binary_view()).to_numpy(zero_copy_only=False)
    converted = pa.array(values, pa.large_binary()).cast(pa.binary())
    return converted if kind == converted.type else converted.view(kind)


def _of_runs(array: pa.Array) -> pa.Array:
    ends: Ints = np.asarray(array.run_ends).astype(np.int64)
    lengths = np.diff(np.clip(ends - array.offset, 0, len(array)), prepend=0)
    return plain_array(array.values).take(pa.array(np.repeat(np.arange(len(ends)), lengths)))


def _of_struct(array: pa.Array) -> pa.Array:
    kind = array.type
    children = [plain_array(child) for child in array.flatten()]
    fields = [
        pa.field(kind.field(n).name, child.type, kind.field(n).nullable)
        for n, child in enumerate(children)
    ]
    return pa.StructArray.from_arrays(children, fields=fields, mask=_nulls(array))


def _of_map(array: pa.Array) -> pa.Array:
    offsets: Ints = np.asarray(array.offsets).astype(np.int64)
    first, rows = int(offsets[0]), int(offsets[-1] - offsets[0])
    keys, items = (plain_array(part.slice(first, rows)) for part in (array.keys, array.items))
    return pa.MapArray.from_arrays(_offsets(offsets - first, array), keys, items)


def _of_list(array: pa.Array) -> pa.Array:
    """Convert a list, a large list, or one of a fixed size."""
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return pa.ListArray.from_arrays(_offsets(offsets, array), plain_array(array.flatten()))


def _of_list_views(array: pa.Array) -> pa.Array:
    """Return the items of views are in any order, and may be shared."""
    valid = np.asarray(array.is_valid())
    sizes: Ints = np.where(valid, np.asarray(array.sizes).astype(np.int64), 0)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    starts: Ints = np.asarray(array.offsets).astype(np.int64)[: len(array)] - offsets[:-1]
    rows = np.repeat(starts, sizes) + np.arange(offsets[-1])
    items = plain_array(array.values).take(pa.array(rows))
    return pa.ListArray.from_arrays(_offsets(offsets, array), items)


def _offsets(offsets: Ints, array: pa.Array) -> pa.Array:
    """Return offsets of 32 bits, null where the list is; ArrowInvalid for too many items."""
    if offsets[-1] >= _LONGEST:
        raise pa.ArrowInvalid(f"{offsets[-1]:,} items in one block of {array.type}")
    mask = np.append(np.asarray(array.is_null()), False) if array.null_count else None
    return pa.array(offsets.astype(np.int32), mask=mask)


def _nulls(array: pa.Array) -> Any:
    return array.is_null() if array.null_count else None


@functools.cache
def _unknown_type() -> Any:
    class Unknown(pa.ExtensionType):  # type: ignore[misc]
        """A type that the metadata of a field names, and that is not registered here."""

        def __init__(self, storage: pa.DataType, name: str) -> None:
            self._name = name
            super().__init__(storage, name)

        def __arrow_ext_serialize__(self) -> bytes:
            return self._name.encode()

        @classmethod
        def __arrow_ext_deserialize__(cls, storage: pa.DataType, name: bytes) -> Unknown:
            return cls(storage, name.decode())

    return Unknown
