"""The parts of an element of the dataset, and how they are built.

From Python to TensorFlow go few and large arrays: the reader's block of each dtype, whole.
Columns and matrices are cut out of them by TensorFlow, without the interpreter lock: a
tensor has no strides, so a column of a row-wise block is a copy, and one transpose for all
of them is the quickest.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from paimon_features.core.errors import ConfigurationError, UnknownNameError
from paimon_features.core.types.array_types import Array
from trainer_bridge.batches.aligned import RECYCLED
from trainer_bridge.batches.forms import Batch, stacked_columns
from trainer_bridge.batches.stacks import cast_matrix, check_stacks
from trainer_bridge.batches.tensor_columns import ColumnSpec, TensorColumn
from trainer_bridge.readers.loss_weights import SAMPLE_WEIGHT
from trainer_bridge.readers.snapshot_reader import SnapshotReader

ROW_NUMBER = "row_number"
_PACKED_FROM = 4
"""So many columns of a dtype go to TensorFlow as one array."""

Tensors = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """One array that goes to TensorFlow: what it is, how to get it, what becomes of it."""

    spec: tf.TensorSpec
    take: Callable[[Batch], Array]


class Element:
    """Arrays of a batch, and the function that makes named tensors of them in the graph."""

    def __init__(self, forms: ListForms) -> None:
        self.names: list[str] = []
        """The tensors that there are."""
        self._forms = forms
        self._parts: list[Part] = []
        self._makers: list[Callable[[Sequence[Any]], Tensors]] = []

    def arrays(self, batch: Batch) -> list[Array]:
        """Return what goes to TensorFlow of a batch, in the order of the signature."""
        return [part.take(batch) for part in self._parts]

    @property
    def signature(self) -> tuple[tf.TensorSpec, ...]:
        return tuple(part.spec for part in self._parts)

    def tensors(self, arrays: Sequence[Any]) -> Tensors:
        """Return all tensors by name; runs inside ``Dataset.map``."""
        by_name: Tensors = {}
        for maker in self._makers:
            by_name.update(maker(arrays))
        return by_name

    def add_column(
        self,
        name: str,
        dtype: Any,
        rows: int | None,
        take: Callable[[Batch], Array],
        shape: tuple[int, ...] = (),
    ) -> None:
        """Add an array that becomes a tensor as it is."""
        place = self._take(tf.TensorSpec((rows, *shape), dtype), take)
        self._make([name], lambda arrays: {name: self._forms(name, arrays[place])})

    def add_arrow(self, column: TensorColumn, rows: int | None) -> None:
        """Add a column of plain numbers as Arrow decoded it: no copy where it has no null."""
        name, dtype = column.spec.name, column.spec.dtype

        def take(batch: Batch) -> Array:
            assert batch.arrow is not None
            parts = list(column.numbers(batch.arrow.column(name)))
            numbers = parts[0] if len(parts) == 1 else np.concatenate(parts)
            return numbers.astype(dtype, copy=False)

        self.add_column(name, dtype.name, rows, take)

    def add_packed(self, columns: Sequence[TensorColumn], rows: int | None) -> None:
        """Columns of plain numbers of one dtype as one array, a column a row of it.

        An array that goes to TensorFlow costs more than copying a column. TensorFlow cuts the
        columns out without a copy where they are a multiple of 64 bytes.
        """
        dtype = columns[0].spec.dtype

        def take(batch: Batch) -> Array:
            assert batch.arrow is not None
            matrix = stacked_columns([batch.arrow.column(column.spec.name) for column in columns])
            if matrix is not None:
                return matrix.view(dtype)
            packed = RECYCLED.empty((len(columns), len(batch)), dtype)
            for out, column in zip(packed, columns, strict=True):
                start = 0
                for part in column.numbers(batch.arrow.column(column.spec.name)):
                    out[start : start + len(part)] = part
                    start += len(part)
            return packed

        place = self._take(tf.TensorSpec((len(columns), rows), dtype.name), take)
        names = [column.spec.name for column in columns]

        def make(arrays: Sequence[Any]) -> Tensors:
            cut = tf.unstack(arrays[place], num=len(names), axis=0)
            return {name: self._forms(name, one) for name, one in zip(names, cut, strict=True)}

        self._make(names, make)

    def add_lists(self, spec: ColumnSpec, rows: int | None) -> None:
        """Add a column of lists: values and row splits, or an array where all have one length."""
        name, dtype = spec.name, spec.dtype.name
        if not spec.ragged_rank:
            self.add_column(name, dtype, rows, lambda b: b.columns[name], spec.shape)
            return
        values = self._take(
            tf.TensorSpec((None, *spec.shape), dtype), lambda b: b.ragged[name].values
        )
        ends = [None if rows is None else rows + 1, *[None] * (spec.ragged_rank - 1)]
        splits = [
            self._take(tf.TensorSpec((size,), tf.int64), _splits(name, level))
            for level, size in enumerate(ends)
        ]
        self._make(
            [name],
            lambda arrays: {
                name: self._forms(name, arrays[values], [arrays[place] for place in splits])
            },
        )

    def add_block(
        self,
        dtype: str,
        columns: Sequence[str],
        rows: int | None,
        singles: Sequence[str],
        stacks: Mapping[str, Sequence[str]],
    ) -> None:
        """Add the block of a dtype, from which single columns and matrices are cut."""
        place = self._take(tf.TensorSpec((rows, len(columns)), dtype), lambda b: b.blocks[dtype])
        at = {name: number for number, name in enumerate(columns)}

        def make(arrays: Sequence[Any]) -> Tensors:
            block = arrays[place]
            tensors = {
                name: _select(block, [at[column] for column in wanted], len(columns))
                for name, wanted in stacks.items()
            }
            if singles:
                selected = _select(block, [at[name] for name in singles], len(columns))
                if len(singles) == 1:  # the same memory, so not a transpose
                    cut = [tf.reshape(selected, [-1 if rows is None else rows])]
                else:
                    cut = tf.unstack(tf.transpose(selected), num=len(singles))
                for name, column in zip(singles, cut, strict=True):
                    tensors[name] = self._forms(name, column)
            return tensors

        self._make([*stacks, *singles], make)

    def _take(self, spec: tf.TensorSpec, take: Callable[[Batch], Array]) -> int:
        """Take an array along; returns its place."""
        self._parts.append(Part(spec, take))
        return len(self._parts) - 1

    def _make(self, names: Sequence[str], maker: Callable[[Sequence[Any]], Tensors]) -> None:
        self.names += names
        self._makers.append(maker)


def _weights(batch: Batch) -> Array:
    if batch.arrow is None:
        return batch.columns[SAMPLE_WEIGHT]
    weights: Array = batch.arrow.column(SAMPLE_WEIGHT).to_numpy()
    return weights


def _splits(name: str, level: int) -> Callable[[Batch], Array]:
    return lambda batch: batch.ragged[name].splits[level]


def _select(block: Any, places: Sequence[int], width: int) -> Any:
    """Return columns of a block; all of them in their order are the block itself."""
    first, last = places[0], places[-1]
    if list(places) != list(range(first, last + 1)):
        return tf.gather(block, list(places), axis=1)
    return block if len(places) == width else block[:, first : last + 1]


class ListForms:
    """What columns of lists and of texts become.

    Parameters
    ----------
    sparse, to_dense
        Columns of lists that become a ``SparseTensor``, or a tensor that is padded to the
        longest list of the batch (``{name: True}`` with zeros, ``{name: -1}`` with -1).
    texts
        Columns of codes that become ``tf.string`` again.

    Raises
    ------
    UnknownNameError, ConfigurationError
        For a column that is not read, or not of that kind.
    """

    def __init__(
        self,
        reader: SnapshotReader,
        sparse: Collection[str],
        to_dense: Mapping[str, Any],
        texts: Collection[str],
    ) -> None:
        named = (*sparse, *to_dense, *texts)
        specs = column_specs(reader) if named else {}
        for name in named:
            if name not in specs:
                raise UnknownNameError.of("column read", name, specs)
        for name in (*sparse, *to_dense):
            if not specs[name].ragged_rank:
                raise ConfigurationError(
                    f"sparse= or to_dense= names {name!r}, which has no lists of any length"
                )
            if name in sparse and name in to_dense:
                raise ConfigurationError(f"column {name!r} is in sparse= and in to_dense=")
        self._sparse = frozenset(sparse)
        self._pads = {name: pad for name, pad in to_dense.items() if pad is not False}
        self._words = {name: _words(reader, name) for name in texts}

    def __call__(self, name: str, values: Any, splits: Sequence[Any] = ()) -> Any:
        """Return the tensor of a column, from its values and row splits; runs in the graph."""
        if name in self._words:
            values = tf.gather(self._words[name], values)
        if not splits:
            return values
        # a check would go through every list again: NumPy made these splits
        lists = tf.RaggedTensor.from_nested_row_splits(values, splits, validate=False)
        if name in self._sparse:
            return lists.to_sparse()
        if name in self._pads:
            pad = self._pads[name]
            return lists.to_tensor(None if pad is True else tf.cast(pad, lists.dtype))
        return lists


def _words(reader: SnapshotReader, name: str) -> Any:
    vocabulary = reader.vocabularies.get(name)
    if vocabulary is None:
        raise ConfigurationError(
            f"texts= names {name!r}, which is not read as codes of texts: SnapshotReader(codes=...)"
        )
    if vocabulary.unknown is not None:
        raise ConfigurationError(
            f"texts= names {name!r}, whose vocabulary has one code for all other texts, which "
            "cannot become them again; take the codes, or SnapshotReader(codes=[...]) for all texts"
        )
    return tf.constant(vocabulary.words.to_pylist() or [""])


def plan(
    reader: SnapshotReader,
    stack: Mapping[str, Sequence[str]],
    forms: ListForms,
    row_numbers: bool,
    stack_dtype: str | None = None,
) -> Element:
    """Return the element of a reader's batches, with every column that it reads.

    Raises
    ------
    ConfigurationError, UnknownNameError
        For a stack that cannot be made.
    """
    by_arrow = _arrow_columns(reader) if reader.output == "arrow" else []
    specs = {column.spec.name: column.spec for column in by_arrow} or column_specs(reader)
    rows = reader.rows_per_batch
    plain = {
        name: spec.dtype for name, spec in specs.items() if not spec.ragged_rank and not spec.shape
    }
    stacks = {name: list(columns) for name, columns in stack.items()}
    check_stacks(stacks, specs, stack_dtype)
    stacked = {column for columns in stacks.values() for column in columns}
    element = Element(forms)
    if reader.output == "arrow":
        if stacks:
            raise ConfigurationError(
                "stack= cuts matrices out of the reader's blocks; read with output='numpy'"
            )
        by_dtype: dict[str, list[TensorColumn]] = {}
        for column in by_arrow:
            by_dtype.setdefault(column.spec.dtype.name, []).append(column)
        for alike in by_dtype.values():
            if len(alike) >= _PACKED_FROM:
                element.add_packed(alike, rows)
                continue
            for column in alike:
                element.add_arrow(column, rows)
    else:
        _add_blocks(element, plain, rows, stacks if stack_dtype is None else {}, stacked)
        if stack_dtype is not None:
            for name, columns in stacks.items():
                cast = functools.partial(cast_matrix, columns=columns, dtype=stack_dtype)
                element.add_column(name, stack_dtype, rows, cast, (len(columns),))
        for spec in specs.values():
            if spec.name not in plain:
                element.add_lists(spec, rows)
    if reader.weighted:
        element.add_column(SAMPLE_WEIGHT, tf.float32, rows, _weights)
    if row_numbers:
        element.add_column(ROW_NUMBER, tf.int64, rows, lambda b: b.row_numbers)
    order = [*specs, *stacks, *element.names]
    element.names = [name for name in dict.fromkeys(order) if name in element.names]
    return element


def _add_blocks(
    element: Element,
    plain: Mapping[str, np.dtype[Any]],
    rows: int | None,
    stacks: Mapping[str, Sequence[str]],
    stacked: Collection[str],
) -> None:
    by_dtype: dict[str, list[str]] = {}
    for name, dtype in plain.items():
        by_dtype.setdefault(dtype.name, []).append(name)
    for kind, columns in by_dtype.items():
        matrices = {name: wanted for name, wanted in stacks.items() if wanted[0] in columns}
        singles = [name for name in columns if name not in stacked]
        if singles or matrices:
            element.add_block(kind, columns, rows, singles, matrices)


def column_specs(reader: SnapshotReader) -> dict[str, ColumnSpec]:
    """Return what each column of a batch is, for either output of the reader.

    Raises
    ------
    RequestError
        For a column of an Arrow reader that has no tensor form.
    ConfigurationError
        For its lists, which take a reader with ``output="numpy"``.
    """
    if reader.output == "numpy":
        return reader.column_specs()
    return {column.spec.name: column.spec for column in _arrow_columns(reader)}


def _arrow_columns(reader: SnapshotReader) -> list[TensorColumn]:
    columns = [TensorColumn.plan(field, reader.table) for field in reader.schema]
    for column in columns:
        if column.spec.ragged_rank or column.spec.shape:
            raise ConfigurationError(
                f"{column.where} contains lists, which need a reader with output='numpy'"
            )
    return columns
